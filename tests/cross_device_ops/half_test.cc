// Reductions of 16-bit numbers: combined as float32, rounded once, under every algorithm.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/half_conversion.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace half_reduction_test {

using cdo_tests::cpu;
using cdo_tests::expect_same_bits;
using cdo_tests::make_op;

constexpr DType kHalves[] = {DType::kBFloat16, DType::kFloat16};

std::vector<Tensor> values_of(int replicas, DType dtype, double scale) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    const RandomKey key{static_cast<std::uint64_t>(r + 1), kUserPurpose};
    values.push_back(cast(random_uniform({9001}, key, -scale, scale), dtype).to(cpu(r)));
  }
  return values;
}

TEST(HalfReduction, EveryAlgorithmRoundsTheFloatSumOnce) {
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
      // The ring has its own order of additions, but rounds once, too: as its sum of floats.
      const auto ring = make_op("ring", replicas);
      expect_same_bits(
          ring->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values))[0],
          narrowed(ring->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(wide))[0], dtype));
    }
  }
}

TEST(HalfReduction, AMeanFitsWhereTheSumDoesNot) {
  const std::vector<Tensor> values = {Tensor::full({3}, 60000, DType::kFloat16, cpu(0)),
                                      Tensor::full({3}, 60000, DType::kFloat16, cpu(1))};
  for (const char* name : {"canonical", "ring"}) {
    const auto ops = make_op(name, 2);
    testing::expect_tensor(ops->all_reduce(ReduceOp::kMean, PerReplica<Tensor>(values))[0], {3},
                           {60000, 60000, 60000});
  }
}

}  // namespace half_reduction_test
}  // namespace tutti
