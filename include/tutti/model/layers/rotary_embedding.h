// Positions of steps as rotations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct RotaryEmbeddingOptions {
  /// Features i and i + features / 2 turn by max_wavelength^(-2 i / features) a step.
  double max_wavelength = 10000.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, ..., features] -> the same, of an even number of features: features i and i +
/// features / 2 of step t (0, 1, ...) as the point of a plane, turned by the angle t *
/// max_wavelength^(-2 i / features). The product of a query and a key that are turned so depends on
/// how far apart their steps are, not on where they are. Pairs are those of Llama's weights as
/// Hugging Face stores them and of Keras Hub's RotaryEmbedding. For attention of one's own;
/// MultiHeadAttention turns its queries and keys itself (`.rotary_max_wavelength`).
class RotaryEmbedding : public LayerOf<RotaryEmbedding> {
 public:
  explicit RotaryEmbedding(RotaryEmbeddingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  RotaryEmbeddingOptions options_;
};

namespace internal {
/// x [..., features] with its features turned by the numbers of their steps along `step_axis`, of
/// which `first_step` is the first, in float32 at least.
Tensor turned_by_step(const Tensor& x, int step_axis, double max_wavelength,
                      std::int64_t first_step = 0);
/// Throws kInvalidArgument unless there can be pairs of so many features, and the wavelength is
/// positive.
void require_rotation(std::int64_t features, double max_wavelength, std::string_view who);
}  // namespace internal

}  // namespace tutti
