// The dropout layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct DropoutOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// In training each element is 0 with probability `rate`, else x / (1 - rate); otherwise x. The
/// mask is keyed by (seed, step, replica, layer, ordinal of the call in the step, element): a
/// replay of a step draws the same one.
class Dropout : public LayerOf<Dropout> {
 public:
  /// Throws kInvalidArgument unless rate is in [0, 1).
  explicit Dropout(double rate, DropoutOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double rate_;
};

}  // namespace tutti
