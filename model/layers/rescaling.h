// The layer that scales inputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct RescalingOptions {
  double offset = 0.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x * scale + offset as float32: Rescaling(1.0 / 255) for images of bytes.
class Rescaling : public LayerOf<Rescaling> {
 public:
  explicit Rescaling(double scale, RescalingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double scale_;
  double offset_;
};

}  // namespace tutti
