// Concatenation of the values of replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cross_device_ops/cdo_helpers.h"

namespace tutti {
namespace {

using namespace cdo_tests;

Tensor gather_copies(const Tensor& value, int copies, int axis, Device destination = {}) {
  const auto ops = make_op("canonical", copies);
  return ops->gather(ops->broadcast(value, cpus(copies)), axis, destination);
}

/// ones([1, r + 1]) for replica r, or its transpose.
PerReplica<Tensor> uneven_ones(int replicas, int uneven_axis) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    values.push_back(
        Tensor::ones(Shape{1, 1}.with_dim(uneven_axis, r + 1), DType::kFloat32, cpu(r)));
  }
  return PerReplica<Tensor>(std::move(values));
}

TEST(CrossDeviceOpsGather, Vectors) {
  const Tensor value = Tensor::from<std::int32_t>({3}, {1, 2, 3});
  const Tensor two = gather_copies(value, 2, 0, cpu(1));
  expect_tensor(two, {6}, {1, 2, 3, 1, 2, 3});
  EXPECT_EQ(two.device(), cpu(1));
  EXPECT_EQ(two.dtype(), DType::kInt32);
  expect_tensor(gather_copies(value, 1, 0), {3}, {1, 2, 3});
}

TEST(CrossDeviceOpsGather, MatricesAlongEitherAxis) {
  const Tensor value = Tensor::from<float>({1, 3}, {1, 2, 3});
  expect_tensor(gather_copies(value, 2, 0), {2, 3}, {1, 2, 3, 1, 2, 3});
  expect_tensor(gather_copies(value, 2, 1), {1, 6}, {1, 2, 3, 1, 2, 3});
  expect_tensor(gather_copies(value, 2, -1), {1, 6}, {1, 2, 3, 1, 2, 3});
}

TEST(CrossDeviceOpsGather, CubesAlongEachAxis) {
  const Tensor value = Tensor::from<double>({1, 2, 2}, {1, 2, 3, 4});
  expect_tensor(gather_copies(value, 3, 0), {3, 2, 2}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(gather_copies(value, 3, 1), {1, 6, 2}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(gather_copies(value, 3, 2), {1, 2, 6}, {1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4});
}

TEST(CrossDeviceOpsGather, UnevenLengthsAlongAxis0) {
  const Tensor all = make_op("canonical", 3)->gather(uneven_ones(3, 0), 0, cpu(0));
  expect_tensor(all, {6, 1}, {1, 1, 1, 1, 1, 1});
}

TEST(CrossDeviceOpsGather, UnevenLengthsAlongAxis1) {
  const Tensor all = make_op("canonical", 4)->gather(uneven_ones(4, 1), 1, cpu(0));
  expect_tensor(all, {1, 10}, std::vector<double>(10, 1.0));
  const PerReplica<Tensor> rows({Tensor::from<float>({2, 1}, {1, 2}),
                                 Tensor::from<float>({2, 2}, {3, 4, 5, 6}), Tensor::zeros({2, 0})});
  expect_tensor(make_op("canonical", 3)->gather(rows, 1, cpu(0)), {2, 3}, {1, 3, 4, 2, 5, 6});
}

TEST(CrossDeviceOpsGather, OtherDimensionsMustBeEqual) {
  const auto ops = make_op("canonical", 2);
  expect_error(kInvalid,
               {"Shape mismatch", "dimension 1 must be equal in both shapes", "[1, 1]", "[1, 2]",
                "replica 1"},
               [&] { ops->gather(uneven_ones(2, 1), 0, cpu(0)); });
}

TEST(CrossDeviceOpsGather, SparseRowsAreRefused) {
  const PerReplica<IndexedSlices> value({rows_of({1}, {0}, {5, 1}), rows_of({1}, {0}, {5, 1})});
  expect_error(ErrorCode::kUnimplemented, {"gather does not support IndexedSlices"},
               [&] { (void)make_op("canonical", 2)->gather(value, 0, cpu(0)); });
}

TEST(CrossDeviceOpsGather, RanksMustBeEqual) {
  const PerReplica<Tensor> value({Tensor::zeros({1}), Tensor::zeros({1, 1})});
  const auto ops = make_op("canonical", 2);
  expect_error(kInvalid, {"rank", "[1]", "[1, 1]", "replica 1"},
               [&] { ops->gather(value, 0, cpu(0)); });
  const PerReplica<Tensor> types({Tensor::zeros({1}), Tensor::zeros({1}, DType::kInt32)});
  expect_error(kInvalid, {"float32", "int32", "replica 1"}, [&] { ops->gather(types, 0, cpu(0)); });
}

TEST(CrossDeviceOpsGather, RefusesScalarsNothingAndMissingAxes) {
  const auto ops = make_op("canonical", 2);
  expect_error(kInvalid, {"scalars", "rank of 1", "expand_dims()"},
               [&] { gather_copies(Tensor(1.0f), 2, 0); });
  expect_error(kInvalid, {"gather", "none"}, [&] { ops->gather(PerReplica<Tensor>(), 0, cpu(0)); });
  expect_error(kInvalid, {"gather"}, [&] { gather_copies(Tensor::zeros({2, 2}), 2, 2); });
}

}  // namespace
}  // namespace tutti
