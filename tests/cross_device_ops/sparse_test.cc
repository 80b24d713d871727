// Sparse sums of the optimizer's path: the bits of the dense sum, each row once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/gradient_ops.h"

#include <algorithm>
#include <cmath>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {

using namespace cdo_tests;

template <class T>
IndexedSlices random_slices(std::uint64_t seed, std::int64_t n, const Shape& dense_shape) {
  const RandomStream stream(RandomKey{seed, kUserPurpose});
  const Shape shape = dense_shape.with_dim(0, n);
  std::vector<T> values(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(stream.normal(i) * std::pow(10.0, i % 5));
  }
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < n; ++i) {
    indices.push_back(static_cast<std::int64_t>(stream.below(
        1000 + static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(dense_shape[0]))));
  }
  return {Tensor::from<T>(shape, values), Tensor::from<std::int64_t>({n}, indices), dense_shape};
}

template <class T>
void expect_bits_of_the_dense_sum(std::size_t replicas, const Shape& dense_shape) {
  std::vector<IndexedSlices> slices;
  std::vector<Tensor> dense;
  for (std::size_t r = 0; r < replicas; ++r) {
    const auto rows = static_cast<std::int64_t>(r % 3 == 1 ? 0 : 20 + r);  // some bring nothing
    slices.push_back(random_slices<T>(r + 1, rows, dense_shape));
    dense.push_back(slices.back().to_dense());
  }
  const IndexedSlices sum = sum_slices_canonically(slices, cpu(1));
  const auto indices = sum.indices.host_span<std::int64_t>();
  EXPECT_TRUE(std::ranges::is_sorted(indices));
  EXPECT_EQ(std::ranges::adjacent_find(indices), indices.end());
  EXPECT_EQ(sum.values.device(), cpu(1));
  expect_same_bits(sum.to_dense(), reduce_tensors_along_tree(ReduceOp::kSum, dense, {}));
}

TEST(SparseSum, HasTheBitsOfTheDenseSum) {
  for (std::size_t replicas = 1; replicas <= 8; ++replicas) {
    expect_bits_of_the_dense_sum<float>(replicas, {11, 3});
    expect_bits_of_the_dense_sum<double>(replicas, {50, 2, 2});
    expect_bits_of_the_dense_sum<float>(replicas, {7});
  }
}

TEST(SparseSum, AddsDuplicatesInPositionOrderThenReplicas) {
  // 1e8 + 1 - 1e8 is 0 from left to right in float, and 1 if the large ones meet first.
  const IndexedSlices first = rows_of({1e8f, 1.0f, -1e8f}, {2, 2, 2}, {4, 1});
  const IndexedSlices second = rows_of({5.0f, 7.0f}, {0, 2}, {4, 1});
  const std::vector<IndexedSlices> both = {first, second};
  const Gradient sum = sum_slices_canonically(both, {});
  expect_rows(sum, {5.0, 7.0}, {0, 2});
}

TEST(SparseSum, NothingFromAnyReplicaIsNothing) {
  const std::vector<IndexedSlices> empty = {rows_of({}, {}, {4, 2}), rows_of({}, {}, {4, 2})};
  const Gradient sum = sum_slices_canonically(empty, {});
  expect_rows(sum, {}, {});
  expect_tensor(sum.to_dense(), {4, 2}, std::vector<double>(8, 0.0));
}

TEST(SparseSum, RefusesWhatDoesNotFit) {
  const std::vector<IndexedSlices> shapes = {rows_of({1}, {0}, {4, 1}), rows_of({1}, {0}, {5, 1})};
  expect_error(ErrorCode::kInvalidArgument, {"[4, 1]", "[5, 1]", "replica 1"},
               [&] { sum_slices_canonically(shapes, {}); });
  expect_error(ErrorCode::kInvalidArgument, {"none"}, [] { sum_slices_canonically({}, {}); });
}

}  // namespace
}  // namespace tutti
