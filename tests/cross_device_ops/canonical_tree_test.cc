// The canonical tree against a literal reading of its definition.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {

using namespace cdo_tests;

/// One element: "in each round neighbour 2i+1 is added to 2i, an odd last one passes up".
template <class T>
T sum_by_rounds(std::vector<T> values) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
      next.push_back(values[i] + values[i + 1]);
    }
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  return values[0];
}

template <class T>
std::vector<std::vector<T>> random_inputs(std::size_t replicas, std::size_t count) {
  std::vector<std::vector<T>> inputs(replicas, std::vector<T>(count));
  for (std::size_t r = 0; r < replicas; ++r) {
    const RandomStream stream(RandomKey{11, kUserPurpose, r});
    for (std::size_t i = 0; i < count; ++i) {
      // Magnitudes far apart, so that another order gives other bits.
      inputs[r][i] = static_cast<T>(stream.normal(i) * std::pow(10.0, (r * 3 + i) % 7));
    }
  }
  return inputs;
}

template <class T>
void expect_tree_bits(std::size_t replicas, std::size_t count) {
  const auto inputs = random_inputs<T>(replicas, count);
  std::vector<const std::byte*> starts;
  for (const auto& input : inputs)
    starts.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(count);
  reduce_along_tree(ReduceOp::kSum, dtype_of<T>(), starts,
                    reinterpret_cast<std::byte*>(output.data()), count);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<T> column;
    for (const auto& input : inputs) column.push_back(input[i]);
    ASSERT_EQ(output[i], sum_by_rounds(column)) << replicas << " replicas, element " << i;
  }
}

TEST(CanonicalTree, AddsInRoundsOfNeighbours) {
  for (std::size_t replicas = 1; replicas <= 17; ++replicas) expect_tree_bits<float>(replicas, 33);
  for (const std::size_t replicas : {2, 7, 64}) expect_tree_bits<double>(replicas, 5);
}

TEST(CanonicalTree, BlocksDoNotChangeTheOrder) {
  for (const std::size_t count : {4095, 4096, 4097, 20000}) expect_tree_bits<float>(5, count);
}

TEST(CanonicalTree, AnotherOrderWouldShow) {
  // The test above would be worth nothing if the sum from left to right had the same bits.
  const auto inputs = random_inputs<float>(8, 100);
  int different = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    std::vector<float> column;
    float from_left = 0.0f;
    for (const auto& input : inputs) {
      column.push_back(input[i]);
      from_left += input[i];
    }
    different += from_left != sum_by_rounds(column);
  }
  EXPECT_GT(different, 10);
}

TEST(CanonicalTree, TheOutputMayBeTheFirstInput) {
  auto inputs = random_inputs<float>(5, 9000);
  const auto before = inputs;
  std::vector<const std::byte*> starts;
  for (auto& input : inputs) starts.push_back(reinterpret_cast<const std::byte*>(input.data()));
  reduce_along_tree(ReduceOp::kSum, DType::kFloat32, starts,
                    reinterpret_cast<std::byte*>(inputs[0].data()), 9000);
  for (std::size_t i = 0; i < 9000; ++i) {
    std::vector<float> column;
    for (const auto& input : before) column.push_back(input[i]);
    ASSERT_EQ(inputs[0][i], sum_by_rounds(column));
  }
  for (std::size_t r = 1; r < 5; ++r) EXPECT_EQ(inputs[r], before[r]);
}

TEST(CanonicalTree, IntegersWrapAround) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  const std::vector<Tensor> values = {Tensor::from<std::int32_t>({2}, {kMax, 1 << 30}),
                                      Tensor::from<std::int32_t>({2}, {1, 8})};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kSum, values, {}), {2},
                {static_cast<double>(std::numeric_limits<std::int32_t>::min()), 1073741832.0});
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kProduct, values, {}), {2},
                {static_cast<double>(kMax), 0.0});
  const std::vector<Tensor> bytes = {Tensor::from<std::uint8_t>({1}, {200}),
                                     Tensor::from<std::uint8_t>({1}, {100})};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kSum, bytes, {}), {1}, {44});
}

TEST(CanonicalTree, NaNReachesTheResultFromEveryReplica) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (std::size_t r = 0; r < 3; ++r) {
      std::vector<Tensor> values(3, Tensor(1.0f));
      values[r] = Tensor(std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(std::isnan(reduce_tensors_along_tree(op, values, {}).item())) << op << " " << r;
    }
  }
}

TEST(CanonicalTree, MeanDividesByTheNumberOfValues) {
  const std::vector<Tensor> floats = {Tensor(1.0f), Tensor(2.0f), Tensor(4.0f)};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kMean, floats, cpu(2)), {}, {7.0f / 3.0f});
  EXPECT_EQ(reduce_tensors_along_tree(ReduceOp::kMean, floats, cpu(2)).device(), cpu(2));
  const std::vector<Tensor> integers = {Tensor::from<std::int64_t>({2}, {1, 1 << 25}),
                                        Tensor::from<std::int64_t>({2}, {2, 1})};
  const Tensor mean = reduce_tensors_along_tree(ReduceOp::kMean, integers, {});
  EXPECT_EQ(mean.dtype(), DType::kFloat32);  // true division
  expect_tensor(mean, {2}, {1.5, 16777216.0});
  // The sum, 180,000, is beyond float16, which ends at 65,504.
  const std::vector<Tensor> halves(3, Tensor::full({2}, 60000, DType::kFloat16));
  const Tensor of_halves = reduce_tensors_along_tree(ReduceOp::kMean, halves, {});
  EXPECT_EQ(of_halves.dtype(), DType::kFloat16);
  expect_tensor(of_halves, {2}, {60000, 60000});
}

TEST(CanonicalTree, RefusesMeanOfPlainBuffersAndNothing) {
  float value = 1.0f;
  const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(&value)};
  expect_error(ErrorCode::kInternal, {"MEAN"}, [&] {
    reduce_along_tree(ReduceOp::kMean, DType::kFloat32, inputs,
                      reinterpret_cast<std::byte*>(&value), 1);
  });
  expect_error(ErrorCode::kInvalidArgument, {"none"},
               [] { reduce_tensors_along_tree(ReduceOp::kSum, {}, {}); });
}

}  // namespace
}  // namespace tutti
