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

/// Axis i of an example becomes axis permutation[i - 1] of the input; axes of examples count from
/// 1: Permute({2, 1}) swaps the two axes of [batch, a, b].
class Permute : public LayerOf<Permute> {
 public:
  explicit Permute(std::vector<int> permutation, ReshapingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::vector<int> permutation_;
};

/// [batch, features] -> [batch, times, features], `times` times the same.
class RepeatVector : public LayerOf<RepeatVector> {
 public:
  explicit RepeatVector(std::int64_t times, ReshapingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t times_;
};

}  // namespace tutti
