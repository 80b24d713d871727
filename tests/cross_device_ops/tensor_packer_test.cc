// Packing tensors, and handing out the parts of rounds.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "cross_device_ops/shared/window_group.h"
#include "cross_device_ops/tensor_packer.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace {

using namespace cdo_tests;

std::vector<std::vector<std::size_t>> packed_tensors(const std::vector<Tensor>& tensors,
                                                     std::int64_t bytes_per_pack) {
  std::vector<std::vector<std::size_t>> lists;
  for (const auto& pack : plan_packs(tensors, bytes_per_pack).packs) lists.push_back(pack.tensors);
  return lists;
}

using Lists = std::vector<std::vector<std::size_t>>;

std::vector<Tensor> floats_of_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<Tensor> tensors;
  for (const std::int64_t size : sizes) tensors.push_back(Tensor::zeros({size}));
  return tensors;
}

TEST(TensorPacker, APackClosesWhenItReachesTheLimit) {
  const auto tensors = floats_of_sizes({1, 2, 3, 4});  // 4, 8, 12 and 16 bytes
  EXPECT_EQ(packed_tensors(tensors, 12), (Lists{{3}, {2}, {1, 0}}));
  EXPECT_EQ(packed_tensors(tensors, 13), (Lists{{3}, {2, 1}, {0}}));
  EXPECT_EQ(packed_tensors(tensors, 1000), (Lists{{3, 2, 1, 0}}));
}

TEST(TensorPacker, LimitBelowOneElementGivesOneTensorPerPack) {
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 1}), 1), (Lists{{2}, {1}, {0}}));
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 1}), 4), (Lists{{2}, {1}, {0}}));
}

TEST(TensorPacker, ZeroBytesPerPackIsAutomatic) {
  const std::int64_t mebi = 1 << 18;  // floats in a MiB
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 3}), 0), (Lists{{2, 1, 0}}));
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 3 * mebi, 1 * mebi, 5}), 0),
            (Lists{{3, 2, 1}, {0}}));
}

TEST(TensorPacker, TypesDoNotMix) {
  const std::vector<Tensor> tensors = {Tensor::zeros({2}, DType::kInt32), Tensor::zeros({1}),
                                       Tensor::zeros({3}, DType::kInt32), Tensor::zeros({4}),
                                       Tensor::zeros({1}, DType::kBool)};
  const PackPlan plan = plan_packs(tensors, 100);
  ASSERT_EQ(plan.packs.size(), 3u);
  for (const auto& pack : plan.packs) {
    for (const std::size_t t : pack.tensors) EXPECT_EQ(tensors[t].dtype(), pack.dtype);
  }
  EXPECT_EQ(packed_tensors(tensors, 100), (Lists{{3, 1}, {2, 0}, {4}}));
  EXPECT_EQ(plan.packs[1].count, 5u);
  EXPECT_TRUE(plan_packs({}, 0).packs.empty());
}

TEST(TensorPacker, PackedTensorsComeBack) {
  const std::vector<Tensor> tensors = {Tensor::from<float>({2, 2}, {1, 2, 3, 4}),
                                       Tensor::zeros({0, 7}), Tensor(5.0f),
                                       Tensor::from<float>({3}, {6, 7, 8})};
  for (const std::int64_t limit : {1, 16, 1000}) {
    std::vector<Tensor> results(tensors.size());
    for (const auto& next : plan_packs(tensors, limit).packs) {
      const MutableTensor buffer = pack(next, tensors, cpu(2));
      EXPECT_EQ(buffer.device(), cpu(2));
      EXPECT_EQ(static_cast<std::size_t>(buffer.num_elements()), next.count);
      unpack(next, buffer, tensors, results);
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) expect_same_bits(results[t], tensors[t]);
  }
}

using internal::PartLanes;

TEST(PartLanes, GivesEachPartOnceInEveryRound) {
  for (const int parts : {1, 2, 3, 5, 16, 37}) {
    for (const int cores : {1, 2, 3, 64}) {
      PartLanes lanes;
      const int num_lanes = PartLanes::num_lanes(parts, cores);
      for (std::uint64_t round = 1; round <= 5; ++round) {
        std::vector<int> taken(static_cast<std::size_t>(parts));
        for (int part = lanes.take(round, parts, num_lanes); part >= 0;
             part = lanes.take(round, parts, num_lanes)) {
          ASSERT_LT(part, parts);
          ++taken[static_cast<std::size_t>(part)];
        }
        EXPECT_EQ(taken, std::vector<int>(taken.size(), 1))
            << parts << " parts, " << num_lanes << " lanes, round " << round;
      }
    }
  }
}

TEST(PartLanes, ThreadsShareThePartsOfARound) {
  constexpr int kParts = 400, kThreads = 4;
  PartLanes lanes;
  const int num_lanes = PartLanes::num_lanes(kParts, kThreads);
  std::vector<std::atomic<int>> taken(kParts);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(Executor::system().start("taker", [&] {
      for (int part = lanes.take(1, kParts, num_lanes); part >= 0;
           part = lanes.take(1, kParts, num_lanes)) {
        ++taken[static_cast<std::size_t>(part)];
      }
    }));
  }
  for (const auto& thread : threads) thread->join();
  for (const std::atomic<int>& count : taken) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace tutti
