// Layer and group normalisation: against the definition in double.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/normalization.h"

namespace tutti {
namespace group_normalization_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-5 : 1e-12; }

/// x as [batch, positions, channels], normalised over positions and each group's channels.
std::vector<double> expected(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                             std::size_t batch, std::size_t groups, double epsilon) {
  const auto xs = x.to_doubles(), scale = gamma.to_doubles(), shift = beta.to_doubles();
  const std::size_t channels = scale.size(), per_row = xs.size() / batch;
  std::vector<double> result(xs.size());
  const auto is_in = [&](std::size_t i, std::size_t row, std::size_t group) {
    return i / per_row == row && i % channels / (channels / groups) == group;
  };
  for (std::size_t pair = 0; pair < batch * groups; ++pair) {
    const std::size_t row = pair / groups, group = pair % groups;
    double sum = 0, squares = 0, count = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      if (!is_in(i, row, group)) continue;
      sum += xs[i];
      ++count;
    }
    for (std::size_t i = 0; i < xs.size(); ++i) {
      if (is_in(i, row, group)) squares += (xs[i] - sum / count) * (xs[i] - sum / count);
    }
    for (std::size_t i = 0; i < xs.size(); ++i) {
      if (!is_in(i, row, group)) continue;
      result[i] =
          (xs[i] - sum / count) / std::sqrt(squares / count + epsilon) * scale[i % channels] +
          shift[i % channels];
    }
  }
  return result;
}

TEST(LayerNorm, NormalisesEachRow) {
  for (DType dtype : kTypes) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{5, 64}, Shape{2, 3, 33}}) {
      SCOPED_TRACE(concat(shape, " ", dtype));
      const Shape features{shape.dim(-1)};
      const Tensor x = random_values(shape, dtype, -3, 5, 1);
      const Tensor gamma = random_values(features, dtype, 0.5, 2, 2);
      const Tensor beta = random_values(features, dtype, -1, 1, 3);
      const auto rows = static_cast<std::size_t>(shape.num_elements() / shape.dim(-1));
      expect_tensor(layer_norm(x, gamma, beta), shape, expected(x, gamma, beta, rows, 1, 1e-3),
                    tolerance(dtype));
    }
    const Tensor x = random_values({3, 4, 5}, dtype, -3, 5, 1);
    const Tensor gamma = random_values({4, 5}, dtype, 0.5, 2, 2);
    const Tensor beta = random_values({4, 5}, dtype, -1, 1, 3);
    expect_tensor(layer_norm(x, gamma, beta, {2, 1e-6}), {3, 4, 5},
                  expected(x, gamma, beta, 3, 1, 1e-6), tolerance(dtype));
  }
}

TEST(GroupNorm, NormalisesEachGroupOfChannels) {
  for (DType dtype : kTypes) {
    for (const std::int64_t groups : {1, 2, 8, 48}) {
      for (const Shape& shape : {Shape{2, 48}, Shape{2, 3, 48}, Shape{3, 4, 5, 48}}) {
        SCOPED_TRACE(concat(shape, " groups ", groups, " ", dtype));
        const Tensor x = random_values(shape, dtype, -3, 5, 1);
        const Tensor gamma = random_values({48}, dtype, 0.5, 2, 2);
        const Tensor beta = random_values({48}, dtype, -1, 1, 3);
        expect_tensor(group_norm(x, gamma, beta, {groups, 1e-3}), shape,
                      expected(x, gamma, beta, static_cast<std::size_t>(shape[0]),
                               static_cast<std::size_t>(groups), 1e-3),
                      tolerance(dtype));
      }
    }
  }
}

TEST(GroupNorm, NoRowsGiveAnEmptyResultAndZeroGradients) {
  const Tensor ones = Tensor::ones({4});
  EXPECT_EQ(layer_norm(Tensor::zeros({0, 4}), ones, ones).shape(), (Shape{0, 4}));
  EXPECT_EQ(group_norm(Tensor::zeros({0, 3, 4}), ones, ones, {2, 1e-3}).shape(), (Shape{0, 3, 4}));
  const Tensor none = Tensor::zeros({0, 2}), empty = Tensor::zeros({0, 3, 4});
  const auto gradients = group_norm_grad(empty, ones, none, none, empty, {3, 2, 1e-3});
  expect_tensor(gradients[1], {4}, {0, 0, 0, 0});
  expect_tensor(gradients[2], {4}, {0, 0, 0, 0});
}

TEST(GroupNorm, ErrorsNameOperationShapesAndLine) {
  const Tensor x = Tensor::zeros({2, 3, 6}), six = Tensor::ones({6}), five = Tensor::ones({5});
  const ErrorCode code = ErrorCode::kInvalidArgument;
  expect_error(code, {"layer_norm at group_normalization_test.cc:", "[6]", "[2, 3, 6]", "[5]"},
               [&] { layer_norm(x, six, five); });
  expect_error(code, {"layer_norm", "num_axes of 1 .. 3", "got 4"}, [&] {
    layer_norm(x, six, six, {4, 1e-3});
  });
  expect_error(code, {"group_norm at group_normalization_test.cc:", "6 channels", "got 4"}, [&] {
    group_norm(x, six, six, {4, 1e-3});
  });
  expect_error(code, {"group_norm", "[6]", "[2, 3, 6]", "[5]"}, [&] {
    group_norm(x, five, six, {2, 1e-3});
  });
  expect_error(code, {"group_norm", "floating type", "int32"}, [&] {
    group_norm(Tensor::zeros({2, 6}, DType::kInt32), six, six);
  });
  expect_error(code, {"group_norm_grad", "[2, 3, 6]", "[2, 6]"}, [&] {
    group_norm_grad(x, six, Tensor::ones({2, 2}), Tensor::ones({2, 2}), Tensor::ones({2, 6}),
                    {3, 2, 1e-3});
  });
}

}  // namespace group_normalization_test
}  // namespace tutti
