// Tests reductions, gathers and broadcasts of per-replica values, and the errors of operations.
// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "cross_device_ops/collective_header.h"
#include "cross_device_ops/reduce_to_all.h"
#include "cross_device_ops/shared/process_wait.h"
#include "tensor/half_conversion.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::reduce_test {
using namespace cdo_tests;
using namespace internal;

class CrossDeviceOpsTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<CrossDeviceOps> make(int num_replicas) const {
    return make_op(GetParam(), num_replicas);
  }
};

INSTANTIATE_TEST_SUITE_P(Builtin, CrossDeviceOpsTest, ::testing::ValuesIn(kBuiltinOps),
                         [](const auto& info) { return info.param; });

void expect_scalar_on(const PerReplica<Gradient>& results, const std::vector<Device>& devices,
                      double expected) {
  ASSERT_EQ(results.size(), devices.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    expect_tensor(results[i].dense(), {}, {expected});
    EXPECT_EQ(results[i].dense().device(), devices[i]);
  }
}

// Returns the three kinds of destination: all replicas, the device of another value, a named
// device.
std::vector<std::vector<Device>> destinations_of(int num_replicas) {
  return {cpus(num_replicas), {cpu(9)}, {Device::parse("cpu:7")}};
}

TEST_P(CrossDeviceOpsTest, ReducesToMeanAndSum) {
  for (const int replicas : {1, 2, 4}) {
    const auto ops = make(replicas);
    std::vector<double> values;
    for (int r = 0; r < replicas; ++r) values.push_back(r);
    const double mean = (replicas - 1) / 2.0;
    const auto devices = cpus(replicas);
    expect_scalar_on(ops->reduce(ReduceOp::kMean, scalars(values), devices), devices, mean);
    expect_scalar_on(ops->reduce(ReduceOp::kSum, scalars(values), devices), devices,
                     mean * replicas);
  }
}

TEST_P(CrossDeviceOpsTest, ResultsAreOnDestination) {
  const int replicas = 4;
  const auto ops = make(replicas);
  for (const auto& destinations : destinations_of(replicas)) {
    const PerReplica<Gradient> value = scalars({1, 2, 3, 4});
    expect_scalar_on(ops->reduce(ReduceOp::kMean, value, destinations), destinations, 2.5);
    expect_scalar_on(ops->reduce(ReduceOp::kSum, value, destinations), destinations, 10.0);
    const Gradient one = ops->reduce(ReduceOp::kSum, value, destinations.front());
    expect_scalar_on(PerReplica<Gradient>({one}), {destinations.front()}, 10.0);
  }
}

TEST_P(CrossDeviceOpsTest, BatchReduceUsesOneDestinationPerValue) {
  const int replicas = 4;
  const auto ops = make(replicas);
  for (const auto& first : destinations_of(replicas)) {
    for (const auto& second : destinations_of(replicas)) {
      const std::vector<ReduceTask> tasks = {{scalars({0, 1, 2, 3}), first},
                                             {scalars({1, 2, 3, 4}), second}};
      const auto sums = ops->batch_reduce(ReduceOp::kSum, tasks);
      const auto means = ops->batch_reduce(ReduceOp::kMean, tasks);
      ASSERT_EQ(sums.size(), 2u);
      expect_scalar_on(sums[0], first, 6.0);
      expect_scalar_on(sums[1], second, 10.0);
      expect_scalar_on(means[0], first, 1.5);
      expect_scalar_on(means[1], second, 2.5);
    }
  }
}

PerReplica<Gradient> slices_of_cdo_05() {
  return sparse({rows_of({1, 2}, {1}, {5, 2}), rows_of({3, 4, 5, 6}, {1, 3}, {5, 2})});
}

TEST_P(CrossDeviceOpsTest, ReducesSparseRowsToSumAndMean) {
  const Gradient sum = make(2)->reduce(ReduceOp::kSum, slices_of_cdo_05(), cpu(3));
  expect_rows(sum, {1, 2, 3, 4, 5, 6}, {1, 1, 3});
  EXPECT_EQ(device_of_value(sum), cpu(3));
  EXPECT_EQ(sum.slices().indices.device(), cpu(3));
  expect_tensor(sum.to_dense(), {5, 2}, {0, 0, 4, 6, 0, 0, 5, 6, 0, 0});
  const Gradient mean = make(2)->reduce(ReduceOp::kMean, slices_of_cdo_05(), cpu(0));
  expect_rows(mean, {0.5, 1, 1.5, 2, 2.5, 3}, {1, 1, 3});
  expect_tensor(mean.to_dense(), {5, 2}, {0, 0, 2, 3, 0, 0, 2.5, 3, 0, 0});
}

TEST_P(CrossDeviceOpsTest, BatchReduceAcceptsSingleSparseValue) {
  const std::vector<ReduceTask> tasks = {{slices_of_cdo_05(), {cpu(0), cpu(1)}}};
  const auto sums = make(2)->batch_reduce(ReduceOp::kSum, tasks);
  const auto means = make(2)->batch_reduce(ReduceOp::kMean, tasks);
  ASSERT_EQ(sums.size(), 1u);
  ASSERT_EQ(sums[0].size(), 2u);
  expect_rows(sums[0][1], {1, 2, 3, 4, 5, 6}, {1, 1, 3});
  EXPECT_EQ(device_of_value(sums[0][1]), cpu(1));
  ASSERT_EQ(means.size(), 1u);
  expect_rows(means[0][0], {0.5, 1, 1.5, 2, 2.5, 3}, {1, 1, 3});
}

TEST_P(CrossDeviceOpsTest, SparseRowsAreConcatenatedInReplicaOrder) {
  const std::vector<IndexedSlices> rows = {
      rows_of({1, 2}, {0, 1}, {10, 1}), rows_of({3, 4}, {1, 2}, {10, 1}),
      rows_of({5, 6}, {7, 8}, {10, 1}), rows_of({7, 8}, {3, 2}, {10, 1})};
  expect_rows(make(2)->reduce(ReduceOp::kSum, sparse({rows[0], rows[1]}), cpu(0)), {1, 2, 3, 4},
              {0, 1, 1, 2});
  expect_rows(make(4)->reduce(ReduceOp::kSum, sparse(rows), cpu(0)), {1, 2, 3, 4, 5, 6, 7, 8},
              {0, 1, 1, 2, 7, 8, 3, 2});
}

TEST_P(CrossDeviceOpsTest, BatchAllReduceSumsDenseScalars) {
  const std::vector<double> odd{1, 3, 5, 7}, even{2, 4, 6, 8};
  for (const int size : {1, 2, 4}) {
    const std::vector<PerReplica<Gradient>> batch = {scalars({odd.begin(), odd.begin() + size}),
                                                     scalars({even.begin(), even.begin() + size})};
    const auto sums = make(size)->batch_all_reduce(ReduceOp::kSum, batch);
    expect_scalar_on(sums[0], cpus(size), size * size);
    expect_scalar_on(sums[1], cpus(size), size * (size + 1));
    const auto means = make(size)->batch_all_reduce(ReduceOp::kMean, batch);
    expect_scalar_on(means[0], cpus(size), size);
    expect_scalar_on(means[1], cpus(size), size + 1);
  }
}

TEST_P(CrossDeviceOpsTest, BatchOfDenseAndSparseValuesPreservesOrder) {
  const PerReplica<Gradient> sparse_a =
      sparse({rows_of({1, 2}, {0, 1}, {10, 1}), rows_of({5, 6}, {1, 2}, {10, 1})});
  const PerReplica<Gradient> sparse_b =
      sparse({rows_of({3, 4}, {1, 2}, {5, 1}), rows_of({7, 8}, {0, 1}, {5, 1})});
  const std::vector<PerReplica<Gradient>> batch = {scalars({1, 3}), sparse_a, scalars({2, 4}),
                                                   sparse_b};
  const auto results = make(2)->batch_all_reduce(ReduceOp::kSum, batch);
  ASSERT_EQ(results.size(), 4u);
  expect_scalar_on(results[0], cpus(2), 4);
  expect_scalar_on(results[2], cpus(2), 6);
  for (int r = 0; r < 2; ++r) {
    const auto replica = static_cast<std::size_t>(r);
    expect_rows(results[1][replica], {1, 2, 5, 6}, {0, 1, 1, 2});
    expect_rows(results[3][replica], {3, 4, 7, 8}, {1, 2, 0, 1});
    EXPECT_EQ(device_of_value(results[1][replica]), cpu(r));
  }
}

TEST_P(CrossDeviceOpsTest, AllReduceSumsSparseRows) {
  const IndexedSlices one = rows_of({1}, {0}, {5, 1});
  const IndexedSlices three = rows_of({3}, {2}, {5, 1});
  for (const int group : {1, 2, 4}) {
    const auto size = static_cast<std::size_t>(group);
    const std::vector<PerReplica<Gradient>> pair = {
        sparse(std::vector<IndexedSlices>(size, one)),
        sparse(std::vector<IndexedSlices>(size, three))};
    const auto sums = make(group)->batch_all_reduce(ReduceOp::kSum, pair);
    expect_tensor(sums[0][size - 1].to_dense(), {5, 1}, {1.0 * group, 0, 0, 0, 0});
    expect_tensor(sums[1][0].to_dense(), {5, 1}, {0, 0, 3.0 * group, 0, 0});
    const auto means = make(group)->batch_all_reduce(ReduceOp::kMean, pair);
    expect_tensor(means[0][0].to_dense(), {5, 1}, {1, 0, 0, 0, 0});
  }
}

TEST_P(CrossDeviceOpsTest, PackingDoesNotChangeResults) {
  const std::vector<PerReplica<Gradient>> batch = {scalars({0, 1, 2}), scalars({1, 2, 3}),
                                                   scalars({-1, 5, 9})};
  for (const std::int64_t bytes_per_pack : {0, 1, 4, 8}) {
    const auto sums =
        make(3)->batch_all_reduce(ReduceOp::kSum, batch, {.bytes_per_pack = bytes_per_pack});
    expect_scalar_on(sums[0], cpus(3), 3);
    expect_scalar_on(sums[1], cpus(3), 6);
    expect_scalar_on(sums[2], cpus(3), 13);
  }
}

TEST_P(CrossDeviceOpsTest, SparseRowsOfVariableLengthAreAggregated) {
  const std::vector<IndexedSlices> equal = {
      rows_of({1, 2}, {1}, {10, 2}), rows_of({3, 4}, {2}, {10, 2}), rows_of({2, 1}, {3}, {10, 2})};
  expect_rows(make(3)->reduce(ReduceOp::kSum, sparse(equal), cpu(0)), {1, 2, 3, 4, 2, 1},
              {1, 2, 3});
  const std::vector<IndexedSlices> uneven = {rows_of({1, 2, 3, 4}, {1, 2}, {10, 2}),
                                             rows_of({}, {}, {10, 2}),
                                             rows_of({3, 1, 2, 1}, {5, 6}, {10, 2})};
  expect_rows(make(3)->reduce(ReduceOp::kSum, sparse(uneven), cpu(0)), {1, 2, 3, 4, 3, 1, 2, 1},
              {1, 2, 5, 6});
}

TEST_P(CrossDeviceOpsTest, AllReducePreservesInputsAndDevices) {
  const PerReplica<Tensor> value(
      {Tensor::from<float>({2}, {1, 2}, cpu(4)), Tensor::from<float>({2}, {10, 20}, cpu(2))});
  const PerReplica<Tensor> sum = make(2)->all_reduce(ReduceOp::kSum, value);
  expect_tensor(value[0], {2}, {1, 2});
  expect_tensor(value[1], {2}, {10, 20});
  for (const Tensor& result : sum) expect_tensor(result, {2}, {11, 22});
  EXPECT_EQ(sum[0].device(), cpu(4));
  EXPECT_EQ(sum[1].device(), cpu(2));
}

TEST_P(CrossDeviceOpsTest, BatchMayMixTypesAndContainEmptyTensors) {
  const auto pair = [](const Tensor& a, const Tensor& b) {
    return PerReplica<Gradient>({Gradient(a), Gradient(b)});
  };
  const std::vector<PerReplica<Gradient>> batch = {
      pair(Tensor::from<std::int64_t>({2}, {1, 2}), Tensor::from<std::int64_t>({2}, {3, 4})),
      pair(Tensor::zeros({0, 3}), Tensor::zeros({0, 3})),
      pair(Tensor::from<double>({1, 2}, {0.5, 1}), Tensor::from<double>({1, 2}, {1, 2})),
      pair(Tensor(2.0f), Tensor(3.0f)),
      pair(Tensor::from<std::int64_t>({}, {7}), Tensor::from<std::int64_t>({}, {-9}))};
  const auto sums = make(2)->batch_all_reduce(ReduceOp::kSum, batch);
  ASSERT_EQ(sums.size(), 5u);
  expect_tensor(sums[0][1].dense(), {2}, {4, 6});
  expect_tensor(sums[1][0].dense(), {0, 3}, {});
  expect_tensor(sums[2][0].dense(), {1, 2}, {1.5, 3});
  expect_tensor(sums[3][1].dense(), {}, {5});
  expect_tensor(sums[4][0].dense(), {}, {-2});
  EXPECT_EQ(sums[4][0].dense().dtype(), DType::kInt64);
}

TEST(CrossDeviceOps, CpuDefaultIsCanonicalAndOperationsReportDeterminism) {
  const auto ops = build_cross_device_ops({}, Group{2, 0, cpus(2)});
  EXPECT_EQ(ops->name(), "canonical");
  EXPECT_EQ(ops->determinism(), Determinism::kCanonical);
  for (const std::string& name : kBuiltinOps) {
    EXPECT_EQ(to_string(make_op(name, 2)->determinism()),
              name == "ring" ? "run-to-run" : "canonical");
  }
  EXPECT_EQ(to_string(Determinism::kNone), "none");
  EXPECT_TRUE(make_op("canonical", 2)->sliceable());
  EXPECT_FALSE(make_op("ring", 2)->sliceable());
}

TEST(CrossDeviceOps, BroadcastCopiesToEachDestination) {
  const auto ops = make_op("canonical", 2);
  const auto copies = ops->broadcast(Tensor::from<float>({2}, {1, 2}), cpus(3));
  ASSERT_EQ(copies.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    expect_tensor(copies[static_cast<std::size_t>(i)], {2}, {1, 2});
    EXPECT_EQ(copies[static_cast<std::size_t>(i)].device(), cpu(i));
  }
}

using internal::kAheadBytes;
using internal::reduce_to_all;

/// Returns each rank's values between two guard elements that must not change.
template <class T>
std::vector<std::vector<T>> values_of_ranks(std::size_t ranks, std::size_t count) {
  std::vector<std::vector<T>> values(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < count + 2; ++i) {
      values[r].push_back(static_cast<T>(std::sin(0.7 * double(i) + double(r)) / 3.0));
    }
  }
  return values;
}

template <class T>
void expect_the_trees_bits(std::size_t ranks, std::size_t count, std::size_t ahead) {
  const auto inputs = values_of_ranks<T>(ranks, count);
  auto values = inputs;
  std::vector<std::byte*> outputs;
  for (std::vector<T>& each : values) {
    outputs.push_back(reinterpret_cast<std::byte*>(each.data() + 1));
  }
  const std::vector<const std::byte*> starts(outputs.begin(), outputs.end());
  reduce_to_all(ReduceOp::kSum, dtype_of<T>(), starts, outputs, count, ahead);
  const std::vector<T> sums = tree_sums(inputs);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<T> expected = inputs[r];
    std::copy_n(sums.begin() + 1, count, expected.begin() + 1);
    EXPECT_EQ(values[r], expected)
        << "rank " << r << " of " << ranks << ", " << count << " elements, ahead " << ahead;
  }
}

TEST(ReduceToAll, PrefetchingDoesNotChangeBits) {
  for (std::size_t ranks = 2; ranks <= 9; ++ranks) {  // the sums of 9 ranks do not fit in registers
    for (const std::size_t count : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 1003u, 5000u}) {
      for (const std::size_t ahead : {std::size_t{0}, kAheadBytes}) {
        expect_the_trees_bits<float>(ranks, count, ahead);
        expect_the_trees_bits<double>(ranks, count, ahead);
      }
    }
  }
}

constexpr DType kHalves[] = {DType::kBFloat16, DType::kFloat16};

std::vector<Tensor> values_of(int replicas, DType dtype, double scale) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    const RandomKey key{static_cast<std::uint64_t>(r + 1), kUserPurpose};
    values.push_back(cast(random_uniform({9001}, key, -scale, scale), dtype).to(cpu(r)));
  }
  return values;
}

TEST(HalfReduction, EveryAlgorithmRoundsFloatSumOnce) {
  for (const DType dtype : kHalves) {
    for (const int replicas : {2, 3, 5, 8}) {
      const std::vector<Tensor> values = values_of(replicas, dtype, 2.0);
      std::vector<Tensor> wide;
      for (const Tensor& value : values) wide.push_back(widened(value));
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kProduct}) {
        const Tensor expected = narrowed(reduce_tensors_along_tree(op, wide, cpu(0)), dtype);
        expect_same_bits(reduce_tensors_along_tree(op, values, cpu(0)), expected);
        for (const char* name : {"canonical", "hierarchical_copy", "reduction_to_one_device"}) {
          SCOPED_TRACE(concat(name, " ", op, " ", dtype, " ", replicas));
          const auto ops = make_op(name, replicas);
          expect_same_bits(ops->all_reduce(op, PerReplica<Tensor>(values))[0], expected);
        }
      }
      // The ring adds in a different order, but it also rounds its float sum only once.
      const auto ring = make_op("ring", replicas);
      expect_same_bits(
          ring->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values))[0],
          narrowed(ring->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(wide))[0], dtype));
    }
  }
}

TEST(HalfReduction, MeanIsFiniteWhenSumOverflows) {
  const std::vector<Tensor> values = {Tensor::full({3}, 60000, DType::kFloat16, cpu(0)),
                                      Tensor::full({3}, 60000, DType::kFloat16, cpu(1))};
  for (const char* name : {"canonical", "ring"}) {
    const auto ops = make_op(name, 2);
    testing::expect_tensor(ops->all_reduce(ReduceOp::kMean, PerReplica<Tensor>(values))[0], {3},
                           {60000, 60000, 60000});
  }
}

Tensor gather_copies(const Tensor& value, int copies, int axis, Device destination = {}) {
  const auto ops = make_op("canonical", copies);
  return ops->gather(ops->broadcast(value, cpus(copies)), axis, destination);
}

/// Returns PerReplica values: ones([1, r + 1]) for replica r, or its transpose.
PerReplica<Tensor> uneven_ones(int replicas, int uneven_axis) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    values.push_back(
        Tensor::ones(Shape{1, 1}.with_dim(uneven_axis, r + 1), DType::kFloat32, cpu(r)));
  }
  return PerReplica<Tensor>(std::move(values));
}

TEST(CrossDeviceOpsGather, ConcatenatesVectors) {
  const Tensor value = Tensor::from<std::int32_t>({3}, {1, 2, 3});
  const Tensor two = gather_copies(value, 2, 0, cpu(1));
  expect_tensor(two, {6}, {1, 2, 3, 1, 2, 3});
  EXPECT_EQ(two.device(), cpu(1));
  EXPECT_EQ(two.dtype(), DType::kInt32);
  expect_tensor(gather_copies(value, 1, 0), {3}, {1, 2, 3});
}

TEST(CrossDeviceOpsGather, ConcatenatesAlongEachAxis) {
  const Tensor value = Tensor::from<float>({1, 3}, {1, 2, 3});
  expect_tensor(gather_copies(value, 2, 0), {2, 3}, {1, 2, 3, 1, 2, 3});
  expect_tensor(gather_copies(value, 2, 1), {1, 6}, {1, 2, 3, 1, 2, 3});
  expect_tensor(gather_copies(value, 2, -1), {1, 6}, {1, 2, 3, 1, 2, 3});
  const Tensor cube = Tensor::from<double>({1, 2, 2}, {1, 2, 3, 4});
  expect_tensor(gather_copies(cube, 3, 0), {3, 2, 2}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(gather_copies(cube, 3, 1), {1, 6, 2}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(gather_copies(cube, 3, 2), {1, 2, 6}, {1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4});
}

TEST(CrossDeviceOpsGather, ConcatenatesUnevenLengths) {
  const Tensor all = make_op("canonical", 3)->gather(uneven_ones(3, 0), 0, cpu(0));
  expect_tensor(all, {6, 1}, {1, 1, 1, 1, 1, 1});
  const Tensor columns = make_op("canonical", 4)->gather(uneven_ones(4, 1), 1, cpu(0));
  expect_tensor(columns, {1, 10}, std::vector<double>(10, 1.0));
  const PerReplica<Tensor> rows({Tensor::from<float>({2, 1}, {1, 2}),
                                 Tensor::from<float>({2, 2}, {3, 4, 5, 6}), Tensor::zeros({2, 0})});
  expect_tensor(make_op("canonical", 3)->gather(rows, 1, cpu(0)), {2, 3}, {1, 3, 4, 2, 5, 6});
}

TEST(CrossDeviceOpsGather, RefusesMismatchedTensorsSparseRowsAndInvalidAxes) {
  const auto ops = make_op("canonical", 2);
  EXPECT_INVALID(ops->gather(uneven_ones(2, 1), 0, cpu(0)), "Shape mismatch",
                 "dimension 1 must be equal in both shapes", "[1, 1]", "[1, 2]", "replica 1");
  const PerReplica<IndexedSlices> sparse({rows_of({1}, {0}, {5, 1}), rows_of({1}, {0}, {5, 1})});
  EXPECT_ERROR((void)make_op("canonical", 2)->gather(sparse, 0, cpu(0)), kUnimplemented,
               "gather does not support IndexedSlices");
  const PerReplica<Tensor> ranks({Tensor::zeros({1}), Tensor::zeros({1, 1})});
  EXPECT_INVALID(ops->gather(ranks, 0, cpu(0)), "rank", "[1]", "[1, 1]", "replica 1");
  const PerReplica<Tensor> types({Tensor::zeros({1}), Tensor::zeros({1}, DType::kInt32)});
  EXPECT_INVALID(ops->gather(types, 0, cpu(0)), "float32", "int32", "replica 1");
  EXPECT_INVALID(gather_copies(Tensor(1.0f), 2, 0), "scalars", "rank >= 1", "expand_dims()");
  EXPECT_INVALID(ops->gather(PerReplica<Tensor>(), 0, cpu(0)), "gather", "none");
  EXPECT_INVALID(gather_copies(Tensor::zeros({2, 2}), 2, 2), "gather");
}

Tensor matrix_of_cdu() { return Tensor::from<float>({3, 2}, {1, 2, 0, 0, 3, 4}); }
IndexedSlices rows_of_cdu() { return rows_of({1, 2, 3, 4}, {0, 2}, {3, 2}); }

TEST(GradientOps, AggregatePreservesDenseOrSparseKind) {
  const std::vector<double> expected = {1, 2, 5, 6, 10, 12};
  const std::vector<Gradient> dense = {matrix_of_cdu(),
                                       Tensor::from<float>({3, 2}, {0, 0, 5, 6, 7, 8})};
  expect_tensor(aggregate(dense).dense(), {3, 2}, expected);
  const std::vector<Gradient> sparse = {rows_of_cdu(), rows_of({5, 6, 7, 8}, {1, 2}, {3, 2})};
  const Gradient sum = aggregate(sparse);
  EXPECT_TRUE(sum.is_slices());
  expect_tensor(sum.to_dense(), {3, 2}, expected);
  const std::vector<Gradient> mixed = {dense[0], sparse[0], Gradient()};
  EXPECT_INVALID(aggregate(mixed), "1 dense, 1 sparse and 1 missing");
  EXPECT_INVALID(aggregate({}), "at least one gradient");
}

TEST(GradientOps, DivisionPreservesDenseOrSparseKind) {
  const std::vector<double> expected = {0.5, 1, 0, 0, 1.5, 2};
  expect_tensor(divide_by(matrix_of_cdu(), 2).dense(), {3, 2}, expected);
  const Gradient half = divide_by(rows_of_cdu(), 2);
  EXPECT_TRUE(half.is_slices());
  expect_tensor(half.to_dense(), {3, 2}, expected);
  EXPECT_TRUE(divide_by(Gradient(), 2).is_none());
  EXPECT_INVALID(divide_by(Tensor::ones({2}, DType::kInt32), 2), "floating-point type", "int32");
}

TEST(GradientOps, CopiesAreOnTargetDevice) {
  const Gradient dense = copy_to(matrix_of_cdu(), cpu(3));
  EXPECT_EQ(device_of(dense), cpu(3));
  expect_tensor(dense.dense(), {3, 2}, {1, 2, 0, 0, 3, 4});
  const Gradient rows = copy_to(rows_of_cdu(), cpu(2));
  ASSERT_TRUE(rows.is_slices());
  EXPECT_EQ(device_of(rows), cpu(2));
  EXPECT_EQ(rows.slices().indices.device(), cpu(2));
  expect_tensor(rows.to_dense(), {3, 2}, {1, 2, 0, 0, 3, 4});
  EXPECT_TRUE(copy_to(Gradient(), cpu(1)).is_none());
  EXPECT_ERROR(device_of(Gradient()), kFailedPrecondition, "none");
}

TEST(CrossDeviceOpsErrors, ShapeMismatchNamesReplica) {
  const PerReplica<Tensor> value(
      {Tensor::zeros({2, 3}), Tensor::zeros({2, 3}), Tensor::zeros({3, 2})});
  EXPECT_INVALID(make_op("ring", 3)->all_reduce(ReduceOp::kSum, value), "replica 2", "replica 0",
                 "float32 [2, 3]", "float32 [3, 2]");
  EXPECT_INVALID(reduce_tensors_along_tree(ReduceOp::kSum, value.values(), {}), "replica 2",
                 "[2, 3]", "[3, 2]");
}

TEST(CrossDeviceOpsErrors, RefusesMismatchedDTypesReplicaCountsAndGradientKinds) {
  const PerReplica<Tensor> value({Tensor::zeros({2}), Tensor::zeros({2}, DType::kInt32)});
  EXPECT_INVALID(make_op("canonical", 2)->all_reduce(ReduceOp::kSum, value), "replica 1",
                 "float32 [2]", "int32 [2]");
  const PerReplica<Gradient> mixed(
      {Gradient(Tensor::zeros({5, 2})), Gradient(rows_of({1, 2}, {1}, {5, 2}))});
  EXPECT_INVALID(make_op("canonical", 2)->reduce(ReduceOp::kSum, mixed, cpu(0)), "a dense value",
                 "replica 0", "IndexedSlices", "replica 1");
  const std::vector<PerReplica<Gradient>> batch = {scalars({1, 2}), scalars({1, 2, 3})};
  EXPECT_INVALID(make_op("canonical", 2)->batch_all_reduce(ReduceOp::kSum, batch), "2 replicas",
                 "got 3", "value 1");
  for (const DType dtype : {DType::kInt32, DType::kInt64, DType::kUInt8}) {
    const PerReplica<Tensor> integers({Tensor::ones({2}, dtype), Tensor::ones({2}, dtype)});
    EXPECT_INVALID(make_op("canonical", 2)->all_reduce(ReduceOp::kMean, integers), "MEAN",
                   std::string(to_string(dtype)), "cast()");
  }
}

TEST(CrossDeviceOpsErrors, MissingReplicaValueIsRefused) {
  const auto ops = make_op("canonical", 2);
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, PerReplica<Gradient>(), cpu(0)),
                 "at least one replica", "none");
  const PerReplica<Gradient> missing({Gradient(Tensor(1.0f)), Gradient()});
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, missing, cpu(0)), "a dense value", "no value",
                 "replica 1");
  EXPECT_INVALID(ops->all_reduce_in_place(ReduceOp::kSum, {}), "none");
}

TEST(CrossDeviceOpsErrors, OnlyMinAndMaxSupportBool) {
  const PerReplica<Tensor> value(
      {Tensor::ones({2}, DType::kBool), Tensor::ones({2}, DType::kBool)});
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
    EXPECT_INVALID(make_op("canonical", 2)->all_reduce(op, value), "bool", "MIN or MAX",
                   std::string(to_string(op)));
    EXPECT_INVALID(reduce_tensors_along_tree(op, value.values(), {}), "bool",
                   std::string(to_string(op)));
  }
  EXPECT_INVALID(reduce_tensors_along_tree(ReduceOp::kMean, value.values(), {}), "bool", "MEAN");
}

TEST(CrossDeviceOpsErrors, InvalidDestinationsAndOptionsAreRefused) {
  const auto ops = make_op("canonical", 2);
  const std::vector<Device> none;
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, scalars({1, 2}), none), "reduce",
                 "at least one destination");
  const std::vector<ReduceTask> tasks = {{scalars({1, 2}), {}}};
  EXPECT_INVALID(ops->batch_reduce(ReduceOp::kSum, tasks), "batch_reduce",
                 "at least one destination");
  EXPECT_INVALID(ops->broadcast(Tensor(1.0f), none), "broadcast", "at least one destination");
  const std::vector<PerReplica<Gradient>> batch = {scalars({1, 2})};
  EXPECT_INVALID(
      make_op("canonical", 2)->batch_all_reduce(ReduceOp::kSum, batch, {.bytes_per_pack = -1}),
      "bytes_per_pack", "-1");
}

TEST(CrossDeviceOpsErrors, BufferMismatchNamesReplica) {
  std::vector<float> a(4), b(4);
  const std::vector<ReplicaBuffer> buffers = {
      {reinterpret_cast<std::byte*>(a.data()), 4, DType::kFloat32, cpu(0)},
      {reinterpret_cast<std::byte*>(b.data()), 3, DType::kFloat32, cpu(1)}};
  EXPECT_INVALID(make_op("ring", 2)->all_reduce_in_place(ReduceOp::kSum, buffers), "ring",
                 "4 x float32", "3 x float32", "replica 1");
}

TEST(CrossDeviceOpsErrors, MismatchedSparseRowsAreRefused) {
  const auto ops = make_op("canonical", 2);
  const auto reduce = [&](ReduceOp op, const IndexedSlices& a, const IndexedSlices& b) {
    ops->reduce(op, PerReplica<Gradient>({Gradient(a), Gradient(b)}), cpu(0));
  };
  const IndexedSlices good = rows_of({1, 2}, {1}, {5, 2});
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {1}, {6, 2})), "dense shape [5, 2]",
                 "dense shape [6, 2]", "replica 1");
  EXPECT_INVALID(reduce(ReduceOp::kMax, good, good), "SUM and MEAN", "MAX");
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {5}, {5, 2})), "rows 0 .. 4",
                 "got 5");
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {-1}, {5, 2})), "rows 0 .. 4",
                 "got -1");
  IndexedSlices short_of_values = good;
  short_of_values.values = Tensor::zeros({1, 1});
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, short_of_values), "values of shape [1, 2]",
                 "values [1, 1]", "replica 1");
  IndexedSlices of_floats = good;
  of_floats.indices = Tensor::zeros({1});
  EXPECT_INVALID(reduce(ReduceOp::kSum, of_floats, of_floats), "integer indices", "float32");
}

TEST(PerReplicaTest, MapsValuesAndChecksIndex) {
  const PerReplica<int> values({1, 2, 3});
  EXPECT_EQ(values.map([](int v) { return v * 2.5; }).values(),
            (std::vector<double>{2.5, 5.0, 7.5}));
  EXPECT_ERROR((void)values[3], kOutOfRange, "below 3", "got 3");
  static_assert(is_per_replica<PerReplica<int>> && !is_per_replica<int>);
}

TEST(PropagatedError, MismatchIsInvalidArgumentOnEveryRank) {
  const std::string text = "collective mismatch (count): rank 0 calls a; rank 3 calls b";
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kAborted}) {
    const Error error = as_it_was(Error(code, "rank 2 ended the call: " + text));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), text);
  }
}

TEST(PropagatedError, MissingRankCausesDeadlineExceededOnEveryRank) {
  const std::string text =
      "rank 0: barrier: expected all 2 ranks to take part before the deadline; rank 1 did";
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).message(), text);
  const Error aborted(ErrorCode::kAborted, "the user gave up"),
      lost(ErrorCode::kUnavailable, "gone");
  EXPECT_EQ(as_it_was(aborted).code(), ErrorCode::kAborted);
  EXPECT_EQ(as_it_was(lost).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(as_it_was(lost).message(), "gone");
}

TimePoint in(std::chrono::milliseconds time) { return Clock::system().now() + time; }

class ProcessWaits : public ::testing::TestWithParam<SpinPolicy> {};
INSTANTIATE_TEST_SUITE_P(All, ProcessWaits,
                         ::testing::Values(SpinPolicy::kSpin, SpinPolicy::kYield),
                         [](const auto& of) {
                           return of.param == SpinPolicy::kSpin ? "Spin" : "Yield";
                         });

TEST_P(ProcessWaits, ReturnsTrueWhenReadyAndFalseAtDeadline) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  EXPECT_TRUE(wait.wait_until(
      in(std::chrono::milliseconds(0)), [] { return true; }, [] {}));
  EXPECT_FALSE(wait.wait_until(
      in(std::chrono::milliseconds(5)), [] { return false; }, [] {}));
}

TEST_P(ProcessWaits, NoWakeUpIsLost) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  std::atomic<int> turn{0};
  constexpr int kRounds = 400;
  const auto play = [&](int own) {
    for (int i = own; i < kRounds; i += 2) {
      // Some replies are immediate; others arrive after the waiting thread has gone to sleep.
      if (i % 50 == 0) Clock::system().sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(wait.wait_until(
          in(std::chrono::milliseconds(20000)), [&] { return turn.load() == i; }, [] {}));
      turn.store(i + 1);
      wait.notify();
    }
  };
  const auto other = Executor::system().start("other", [&] { play(1); });
  play(0);
  other->join();
  EXPECT_EQ(turn.load(), kRounds);
}

}  // namespace tutti::reduce_test
