// Collectives of ranks on tensors and IndexedSlices.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace tutti {
namespace tensor_communication_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

Communicator& of(const Communicators& all, int rank) {
  return *all[static_cast<std::size_t>(rank)];
}

TEST(TensorCommunication, TensorsAndSlicesOfRanks) {
  const Communicators all = in_process_communicators(3);
  EXPECT_EQ(
      error_of_ranks(
          3,
          [&](int rank) {
            const auto expect = [](bool holds, const char* what) {
              if (!holds) throw Error(ErrorCode::kInternal, what);
            };
            Communicator& mine = of(all, rank);
            const float r = static_cast<float>(rank);
            const Tensor sum = all_reduce(mine, ReduceOp::kSum, Tensor::full({2, 2}, r));
            expect(sum.to_doubles() == std::vector<double>(4, 3.0), "all_reduce");
            const Tensor copy = broadcast(mine, Tensor::full({3}, r), 2);
            expect(copy.to_doubles() == std::vector<double>(3, 2.0), "broadcast");
            // Rank r brings r rows.
            const Tensor rows = all_gather(mine, Tensor::full({rank, 2}, r));
            expect(rows.to_doubles() == std::vector<double>{1, 1, 2, 2, 2, 2}, "all_gather");
            const IndexedSlices slices{Tensor::full({1, 2}, r),
                                       Tensor::from<std::int64_t>({1}, {4}), Shape{9, 2}};
            const IndexedSlices mean = all_reduce(mine, ReduceOp::kMean, slices);
            expect(mean.values.to_doubles() == std::vector<double>{0, 0, 1.0f / 3.0f, 1.0f / 3.0f,
                                                                   2.0f / 3.0f, 2.0f / 3.0f},
                   "slices");
            expect(mean.indices.to_doubles() == std::vector<double>{4, 4, 4}, "indices");
          }),
      "");
}

TEST(TensorCommunication, WhatOneRankMayNotAskForReachesTheOthers) {
  const auto expect_told = [](const std::string& reason, const auto& call) {
    const Communicators all = in_process_communicators(2);
    const auto errors = errors_of_ranks(2, [&](int rank) { call(of(all, rank), rank == 1); });
    EXPECT_THAT(errors, Each(HasSubstr(reason)));
    EXPECT_THAT(errors[0], HasSubstr("collective mismatch (arguments)"));
    EXPECT_THAT(errors[1], Not(HasSubstr("mismatch")));
  };
  expect_told("scalars cannot be concatenated", [](Communicator& own, bool wrong) {
    all_gather(own, wrong ? Tensor::zeros(Shape{}) : Tensor::zeros({2}));
  });
  expect_told("IndexedSlices have SUM and MEAN, got MAX", [](Communicator& own, bool wrong) {
    const IndexedSlices slices{Tensor::zeros({1, 2}), Tensor::from<std::int64_t>({1}, {4}),
                               Shape{9, 2}};
    all_reduce(own, wrong ? ReduceOp::kMax : ReduceOp::kSum, slices);
  });
}

TEST(TensorCommunication, ShapesThatDifferAreAMismatch) {
  const Communicators all = in_process_communicators(2);
  EXPECT_THAT(errors_of_ranks(2,
                              [&](int rank) {
                                all_reduce(of(all, rank), ReduceOp::kSum,
                                           Tensor::zeros(rank == 0 ? Shape{2, 3} : Shape{3, 2}));
                              }),
              Each(AllOf(HasSubstr("mismatch (shape)"), HasSubstr("[2, 3]"), HasSubstr("[3, 2]"))));
  const Communicators others = in_process_communicators(2);
  EXPECT_THAT(errors_of_ranks(2,
                              [&](int rank) {
                                all_gather(of(others, rank), Tensor::zeros({4, 2 + rank}));
                              }),
              Each(HasSubstr("mismatch (shape)")));
}

}  // namespace tensor_communication_test
}  // namespace tutti
