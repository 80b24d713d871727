// Values and gradients of the gradient check's cases on other devices, compared with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "tests/autograd/gradient_cases_elementwise.h"
#include "tests/autograd/gradient_cases_linear.h"
#include "tests/autograd/gradient_cases_other.h"
#include "tests/autograd/gradient_check.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::gradient_check {

/// Cases that are compared together.
struct Group {
  const char* name;
  std::vector<Case> (*cases)();
};

/// How googletest shows a group.
inline void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }

inline const Group kGroups[] = {{"unary", unary_cases},
                                {"binary", binary_cases},
                                {"activation_grad", activation_grad_cases},
                                {"reduction", reduction_cases},
                                {"matmul", matmul_cases},
                                {"convolution", convolution_cases},
                                {"pooling", pooling_cases},
                                {"normalization", normalization_cases},
                                {"softmax", softmax_cases},
                                {"attention", attention_cases},
                                {"shape", shape_cases}};

/// Takes each group as its parameter.
class GroupTest : public ::testing::TestWithParam<Group> {};

inline std::string group_name(const ::testing::TestParamInfo<Group>& group) {
  return group.param.name;
}

/// Returns the result of the case's function, in float32, and the gradients of its weighted sum;
/// those that are none are undefined.
inline std::vector<Tensor> value_and_gradients(const Case& c, Device device) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : make_inputs(c)) {
    inputs.push_back(
        (input.dtype() == DType::kFloat64 ? cast(input, DType::kFloat32) : input).to(device));
  }
  const std::vector<Tensor> sources = checked_inputs(c, inputs);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  const Tensor y = c.function(inputs);
  EXPECT_EQ(y.device(), device);
  const Tensor weights = cast(random_tensor(y.shape(), 1, 0.5, 1.5), y.dtype());
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(y * weights.to(device)), sources)) {
    results.push_back(gradient.is_none() ? Tensor() : gradient.to_dense());
  }
  return results;
}

/// Compares results of value_and_gradients() with those of the CPU. `tolerance` is relative to the
/// largest element of each, or to 0.1.
inline void expect_near_cpu(const Case& c, const std::vector<Tensor>& actual, double tolerance) {
  const std::vector<Tensor> expected = value_and_gradients(c, Device{});
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(concat(to_string(c.op), " ", c.name, ": ",
                        i == 0 ? std::string("value") : concat("gradient ", i - 1)));
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (!expected[i].defined()) continue;
    ASSERT_EQ(actual[i].shape(), expected[i].shape());
    const std::vector<double> got = actual[i].to_doubles(), want = expected[i].to_doubles();
    double scale = 0.1;
    for (const double value : want) scale = std::max(scale, std::abs(value));
    for (std::size_t k = 0; k < got.size(); ++k) {
      ASSERT_NEAR(got[k], want[k], tolerance * scale) << "element " << k;
    }
  }
}

}  // namespace tutti::gradient_check
