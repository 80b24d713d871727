// A case of the gradient check: a function of tensors and how its inputs are made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::gradient_check {

/// How an input is made: uniform values in [low, high], or given ones.
struct Input {
  Shape shape;
  double low = -1.5;
  double high = 1.5;
  bool rows = false;  // axis 0 is a batch: the test of empty batches makes it 0
  DType dtype = DType::kFloat64;
  double gap = 0.0;                 // values nearer than this to 0 are moved away (kinks)
  std::vector<double> values = {};  // instead of random ones
};

using Function = std::function<Tensor(const std::vector<Tensor>& inputs)>;

enum class Orders { kFirst, kFirstAndSecond };

struct Case {
  OpId op;  // must be among the operations that `function` runs
  std::string name;
  std::vector<Input> inputs;
  Function function;
  Orders orders = Orders::kFirstAndSecond;
  double step = 1e-5;
  double tolerance = 1e-6;
  std::vector<std::size_t> skipped = {};  // inputs that are not differentiable here
};

inline std::vector<double> random_values(std::int64_t count, std::uint64_t key, double low,
                                         double high) {
  RandomKey random_key;
  random_key.seed = 7;
  random_key.purpose = kUserPurpose;
  random_key.a = key;
  const RandomStream stream(random_key);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(low + (high - low) * stream.uniform64(static_cast<std::uint64_t>(i)));
  }
  return values;
}

inline Tensor tensor_of(const Shape& shape, const std::vector<double>& values,
                        DType dtype = DType::kFloat64) {
  const Tensor doubles = Tensor::from<double>(shape, std::span<const double>(values));
  return dtype == DType::kFloat64 ? doubles : cast(doubles, dtype);
}

inline Tensor random_tensor(const Shape& shape, std::uint64_t key, double low = -1.5,
                            double high = 1.5) {
  return tensor_of(shape, random_values(shape.num_elements(), key, low, high));
}

inline Tensor make(const Input& input, std::uint64_t key) {
  if (!input.values.empty()) return tensor_of(input.shape, input.values, input.dtype);
  std::vector<double> values =
      random_values(input.shape.num_elements(), key, input.low, input.high);
  for (double& value : values) {
    if (std::abs(value) < input.gap) value = value < 0 ? value - input.gap : value + input.gap;
  }
  if (input.dtype == DType::kBool) {
    for (double& value : values) value = value > 0 ? 1.0 : 0.0;
  }
  return tensor_of(input.shape, values, input.dtype);
}

inline std::vector<Tensor> make_inputs(const Case& c) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) inputs.push_back(make(c.inputs[i], 100 + i));
  return inputs;
}

inline bool is_checked(const Case& c, std::size_t i) {
  return is_floating(c.inputs[i].dtype) && std::ranges::find(c.skipped, i) == c.skipped.end();
}

/// The checked inputs among `inputs`.
inline std::vector<Tensor> checked_inputs(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_checked(c, i)) result.push_back(inputs[i]);
  }
  return result;
}

}  // namespace tutti::gradient_check
