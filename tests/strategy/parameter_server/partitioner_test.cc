// Tests partitioners: tf's rules, including its rounding, and invalid results.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/partitioner.h"

#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "strategy/parameter_server/shard_placement.h"
#include "tests/strategy/strategy_helpers.h"

namespace tutti::partitioner_tests {

using internal::cut_rows;
using internal::num_shards_of;
using internal::RowRange;
using ::testing::ElementsAre;

constexpr DType kFloat = DType::kFloat32;

TEST(Partitioner, SplitsFirstDimensionByCountOrSize) {
  EXPECT_THAT(FixedShardsPartitioner(2)({10, 3}, kFloat), ElementsAre(2, 1));
  EXPECT_THAT(MinSizePartitioner(4, 2)({6, 1}, kFloat), ElementsAre(2, 1));
  EXPECT_THAT(MinSizePartitioner(4, 10)({6, 1}, kFloat), ElementsAre(6, 1));
  EXPECT_THAT(MaxSizePartitioner(4)({6, 1}, kFloat), ElementsAre(6, 1));
  EXPECT_THAT(MaxSizePartitioner(4, 2)({6, 1}, kFloat), ElementsAre(2, 1));
  EXPECT_THAT(MaxSizePartitioner(1024)({6, 1}, kFloat), ElementsAre(1, 1));
}

TEST(Partitioner, MinSizeRoundsUpAndDefaultsToOneShard) {
  // A minimum of 4 bytes divides 10 bytes into three shards. As in tf, the last shard is smaller
  // than the minimum.
  EXPECT_THAT(MinSizePartitioner(4, 10)({10}, DType::kUInt8), ElementsAre(3));
  EXPECT_THAT(MinSizePartitioner()({1 << 20, 16}, kFloat), ElementsAre(1, 1));
  EXPECT_THAT(MinSizePartitioner(256 << 10, 8)({1'000'000, 16}, kFloat), ElementsAre(8, 1));
}

TEST(Partitioner, MaxSizeDoesNotSplitRows) {
  EXPECT_THAT(MaxSizePartitioner(3)({4, 100}, kFloat), ElementsAre(4, 1));
  // A shard of at most 10 bytes has room for two rows of 4 bytes.
  EXPECT_THAT(MaxSizePartitioner(10)({7}, kFloat), ElementsAre(4));
}

TEST(Partitioner, LargestSizeLimitsGiveOneShard) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t rows : {1, 2, 3, 100}) {
    EXPECT_THAT(MaxSizePartitioner(kLargest)({rows}, DType::kUInt8), ElementsAre(1)) << rows;
    EXPECT_THAT(MaxSizePartitioner(kLargest - 1, 3)({rows, 0}, kFloat), ElementsAre(1, 1)) << rows;
    EXPECT_THAT(MinSizePartitioner(kLargest, 3)({rows, 2}, kFloat), ElementsAre(1, 1)) << rows;
  }
}

TEST(Partitioner, NonPositiveArgumentsAreRejected) {
  EXPECT_ERROR(FixedShardsPartitioner(0), kInvalidArgument, "num_shards: expected >= 1, got 0");
  EXPECT_ERROR(MinSizePartitioner(0, 1), kInvalidArgument, "min_shard_bytes");
  EXPECT_ERROR(MinSizePartitioner(1, 0), kInvalidArgument, "max_shards");
  EXPECT_ERROR(MaxSizePartitioner(-1), kInvalidArgument, "max_shard_bytes");
  EXPECT_ERROR(MaxSizePartitioner(4, 0), kInvalidArgument, "max_shards");
}

TEST(Partitioner, RowsAreSplitContiguouslyWithRemainderFirst) {
  EXPECT_THAT(cut_rows(10, 4),
              ElementsAre(RowRange{0, 3}, RowRange{3, 3}, RowRange{6, 2}, RowRange{8, 2}));
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (std::int64_t shards = 1; shards < 12; ++shards) {
      std::int64_t next = 0;
      for (const RowRange& range : cut_rows(rows, shards)) {
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, rows / shards);
        next += range.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(Partitioner, InvalidResultErrorNamesVariableAndPartitioner) {
  const auto answering = [](std::vector<std::int64_t> answer) {
    return [answer](const Shape&, DType) { return answer; };
  };
  for (const std::vector<std::int64_t>& answer :
       {std::vector<std::int64_t>{}, {0, 1, 1}, {2, 2, 1}, {1, 1, 2}, {2, 1}}) {
    EXPECT_ERROR(num_shards_of(answering(answer), "w", {8, 4, 2}, kFloat), kInvalidArgument,
                 "variable_partitioner: for variable 'w'");
  }
  EXPECT_EQ(num_shards_of(answering({3, 1, 1}), "w", {8, 4, 2}, kFloat), 3);
}

TEST(Partitioner, ScalarsAndEmptyVariablesAreNotSharded) {
  const Partitioner asks = [](const Shape&, DType) -> std::vector<std::int64_t> {
    ADD_FAILURE() << "the partitioner was called";
    return {1};
  };
  EXPECT_EQ(num_shards_of(asks, "w", {}, kFloat), 1);
  EXPECT_EQ(num_shards_of(asks, "w", {0, 3}, kFloat), 1);
  EXPECT_EQ(num_shards_of({}, "w", {5, 3}, kFloat), 1);
}

TEST(Partitioner, MakesAtMostOneShardPerRow) {
  EXPECT_EQ(num_shards_of(FixedShardsPartitioner(4), "w", {3}, kFloat), 3);
  const Partitioner greedy = [](const Shape&, DType) { return std::vector<std::int64_t>{9}; };
  EXPECT_EQ(num_shards_of(greedy, "w", {3}, kFloat), 3);
}

TEST(ServerPicker, RejectsZeroServers) {
  EXPECT_ERROR(internal::ServerPicker(VariablePlacement::kRoundRobin, 0), kInvalidArgument,
               "at least one ps");
}

}  // namespace tutti::partitioner_tests
