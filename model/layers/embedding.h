// The embedding layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct EmbeddingOptions {
  Initializer embeddings_initializer = "uniform";
  Regularizer embeddings_regularizer = {};
  Constraint embeddings_constraint = {};
  /// Index 0 is a gap: such steps do not count for what follows (masks.h).
  bool mask_zero = false;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Rows of a table: indices [batch, ...] of int32 or int64 in 0 .. input_dim-1 -> [batch, ...,
/// output_dim]. The gradient is sparse (IndexedSlices). An index out of range throws
/// kInvalidArgument naming it.
class Embedding : public LayerOf<Embedding> {
 public:
  Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  std::int64_t input_dim_;
  std::int64_t output_dim_;
  EmbeddingOptions options_;
};

}  // namespace tutti
