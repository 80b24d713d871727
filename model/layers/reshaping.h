// Layers that change the shape of examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct ReshapingOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, ...] -> [batch, product of the rest].
class Flatten : public LayerOf<Flatten> {
 public:
  explicit Flatten(ReshapingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

/// [batch, ...] -> [batch] + target; one dimension of the target may be -1: it takes what is left.
class Reshape : public LayerOf<Reshape> {
 public:
  explicit Reshape(std::vector<std::int64_t> target, ReshapingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::vector<std::int64_t> target_;
};

}  // namespace tutti
