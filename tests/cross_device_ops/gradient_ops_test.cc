// Sums, quotients and copies of gradients, dense and sparse.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/gradient_ops.h"

#include "tests/cross_device_ops/cdo_helpers.h"

namespace tutti {
namespace {

using namespace cdo_tests;

Tensor matrix_of_cdu() { return Tensor::from<float>({3, 2}, {1, 2, 0, 0, 3, 4}); }
IndexedSlices rows_of_cdu() { return rows_of({1, 2, 3, 4}, {0, 2}, {3, 2}); }

TEST(GradientOps, AggregateKeepsTheKind) {
  const std::vector<double> expected = {1, 2, 5, 6, 10, 12};
  const std::vector<Gradient> dense = {matrix_of_cdu(),
                                       Tensor::from<float>({3, 2}, {0, 0, 5, 6, 7, 8})};
  expect_tensor(aggregate(dense).dense(), {3, 2}, expected);
  const std::vector<Gradient> sparse = {rows_of_cdu(), rows_of({5, 6, 7, 8}, {1, 2}, {3, 2})};
  const Gradient sum = aggregate(sparse);
  EXPECT_TRUE(sum.is_slices());
  expect_tensor(sum.to_dense(), {3, 2}, expected);
  const std::vector<Gradient> mixed = {dense[0], sparse[0], Gradient()};
  expect_error(ErrorCode::kInvalidArgument, {"1 dense, 1 sparse and 1 missing"},
               [&] { aggregate(mixed); });
  expect_error(ErrorCode::kInvalidArgument, {"one gradient or more"}, [] { aggregate({}); });
}

TEST(GradientOps, DivisionKeepsTheKind) {
  const std::vector<double> expected = {0.5, 1, 0, 0, 1.5, 2};
  expect_tensor(divide_by(matrix_of_cdu(), 2).dense(), {3, 2}, expected);
  const Gradient half = divide_by(rows_of_cdu(), 2);
  EXPECT_TRUE(half.is_slices());
  expect_tensor(half.to_dense(), {3, 2}, expected);
  EXPECT_TRUE(divide_by(Gradient(), 2).is_none());
  expect_error(ErrorCode::kInvalidArgument, {"floating type", "int32"},
               [] { divide_by(Tensor::ones({2}, DType::kInt32), 2); });
}

TEST(GradientOps, CopiesAreOnTheirDevice) {
  const Gradient dense = copy_to(matrix_of_cdu(), cpu(3));
  EXPECT_EQ(device_of(dense), cpu(3));
  expect_tensor(dense.dense(), {3, 2}, {1, 2, 0, 0, 3, 4});
  const Gradient rows = copy_to(rows_of_cdu(), cpu(2));
  ASSERT_TRUE(rows.is_slices());
  EXPECT_EQ(device_of(rows), cpu(2));
  EXPECT_EQ(rows.slices().indices.device(), cpu(2));
  expect_tensor(rows.to_dense(), {3, 2}, {1, 2, 0, 0, 3, 4});
  EXPECT_TRUE(copy_to(Gradient(), cpu(1)).is_none());
  expect_error(ErrorCode::kFailedPrecondition, {"none"}, [] { device_of(Gradient()); });
}

}  // namespace
}  // namespace tutti
