// Algorithms on the buffers of one process: the ring's order, and the tree's.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {

using namespace cdo_tests;

std::vector<Tensor> values_for_ring(int replicas, std::size_t count) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    const RandomStream stream(RandomKey{3, kUserPurpose, static_cast<std::uint64_t>(r)});
    std::vector<float> elements(count);
    for (std::size_t i = 0; i < count; ++i) {
      elements[i] = static_cast<float>(stream.normal(i) * std::pow(10.0, i % 6));
    }
    values.push_back(Tensor::from<float>({static_cast<std::int64_t>(count)}, elements, cpu(r)));
  }
  return values;
}

TEST(RingAllReduce, SumsWhenCountIsNotDivisibleByReplicas) {
  for (const int replicas : {2, 3, 5, 8}) {
    for (const std::size_t count : {1, 2, 7, 8, 64, 1001}) {
      const PerReplica<Tensor> value(values_for_ring(replicas, count));
      const PerReplica<Tensor> sum = make_op("ring", replicas)->all_reduce(ReduceOp::kSum, value);
      const auto v = static_cast<std::size_t>(replicas);
      for (std::size_t chunk = 0; chunk < v; ++chunk) {
        for (std::size_t i = chunk * count / v; i < (chunk + 1) * count / v; ++i) {
          float expected = value[chunk].host_span<float>()[i];
          for (std::size_t step = 1; step < v; ++step) {
            expected += value[(chunk + step) % v].host_span<float>()[i];
          }
          for (const Tensor& result : sum) ASSERT_EQ(result.host_span<float>()[i], expected);
        }
      }
    }
  }
}

TEST(ScheduledOps, CanonicalOnesAddAlongTheTreeForEveryNumberOfReplicas) {
  for (int replicas = 2; replicas <= 20; ++replicas) {
    for (const std::size_t count : {50, 3001}) {
      const std::vector<Tensor> values = values_for_ring(replicas, count);
      const Tensor expected = reduce_tensors_along_tree(ReduceOp::kSum, values, {});
      for (const char* name : {"hierarchical_copy", "halving_doubling", "tree", "auto"}) {
        SCOPED_TRACE(name);
        const auto sums = make_op(name, replicas)->all_reduce(ReduceOp::kSum, PerReplica(values));
        for (const Tensor& sum : sums) expect_same_bits(sum, expected);
      }
    }
  }
}

TEST(ScheduledOps, GoThroughLargeBuffersInSegments) {
  const std::vector<Tensor> values = values_for_ring(5, 200'003);
  const Tensor expected = reduce_tensors_along_tree(ReduceOp::kSum, values, {});
  for (const char* name : {"hierarchical_copy", "halving_doubling", "tree"}) {
    SCOPED_TRACE(name);
    const auto sums = make_op(name, 5)->all_reduce(ReduceOp::kSum, PerReplica(values));
    for (const Tensor& sum : sums) expect_same_bits(sum, expected);
  }
}

}  // namespace
}  // namespace tutti
