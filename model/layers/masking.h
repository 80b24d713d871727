// The layer that says which steps of a sequence do not count.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct MaskingOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, features] as it is, but 0 in the steps whose features all are `mask_value`: they
/// do not count for the layers and the loss that follow (masks.h).
class Masking : public LayerOf<Masking> {
 public:
  explicit Masking(double mask_value = 0.0, MaskingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  double mask_value_;
};

}  // namespace tutti
