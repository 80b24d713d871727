// Tests splitting of global batches, and InputContext.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/input_workers.h"
#include "tests/support/thrown.h"
#include "tutti/strategy/input/input_plan.h"

namespace tutti::input_tests {
namespace {

Step pieces_of(const Dataset& dataset) {
  Step pieces;
  for (const Element& element : dataset) {
    const auto values = element[0].host_span<std::int64_t>();
    pieces.emplace_back(values.begin(), values.end());
  }
  return pieces;
}

TEST(Rebatch, SizesSumToTheGlobalBatchAndDifferByAtMostOne) {
  for (std::int64_t batch : {0, 1, 4, 7, 8, 130}) {
    for (int workers : {1, 2, 3, 5}) {
      for (int replicas : {1, 2, 5}) {
        std::vector<Rows> lists;
        for (int w = 0; w < workers; ++w) {
          lists.push_back(batch_sizes_for_worker(batch, workers, replicas, w));
          ASSERT_EQ(lists.back().size(), static_cast<std::size_t>(workers * replicas));
          EXPECT_EQ(std::accumulate(lists.back().begin(), lists.back().end(), std::int64_t{0}),
                    batch);
          const auto [low, high] = std::minmax_element(lists.back().begin(), lists.back().end());
          EXPECT_LE(*high - *low, 1);
        }
        for (int step = 0; step < workers; ++step) {
          std::int64_t total = 0;
          for (const Rows& list : lists) {
            for (int r = 0; r < replicas; ++r) {
              total += list[static_cast<std::size_t>(step * replicas + r)];
            }
          }
          EXPECT_EQ(total, batch) << batch << " " << workers << " " << replicas;
        }
      }
    }
  }
}

TEST(Rebatch, SizesAreRotatedPerWorker) {
  EXPECT_EQ(batch_sizes_for_worker(8, 2, 2, 1), (Rows{2, 2, 2, 2}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 0), (Rows{2, 1, 1}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 1), (Rows{1, 1, 2}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 2), (Rows{1, 2, 1}));
}

TEST(Rebatch, FewerRowsThanReplicasGivesZeros) {
  EXPECT_EQ(batch_sizes_for_worker(4, 1, 5, 0), (Rows{1, 1, 1, 1, 0}));
  EXPECT_EQ(batch_sizes_for_worker(4, 5, 1, 1), (Rows{1, 1, 1, 0, 1}));
  EXPECT_THROW((void)batch_sizes_for_worker(4, 2, 1, 2), Error);
}

TEST(Rebatch, CutsEachBatchOfFourRows) {
  struct Case {
    std::int64_t elements;
    Rows sizes;
    bool drop_remainder;
    Step expected;
  };
  for (const auto& [elements, sizes, drop_remainder, expected] :
       {Case{8, {2, 2}, false, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
        Case{8, {2, 2}, true, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
        Case{8, {2}, false, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
        // A ragged tail is distributed in order.
        Case{5, {2, 2}, false, {{0, 1}, {2, 3}, {4}}}, Case{5, {2, 2}, true, {{0, 1}, {2, 3}}},
        // Sizes of 0 yield empty batches.
        Case{8, {1, 1, 1, 1, 0}, false, {{0}, {1}, {2}, {3}, {}, {4}, {5}, {6}, {7}, {}}},
        Case{8,
             {0, 1},
             false,
             {{}, {0}, {}, {1}, {}, {2}, {}, {3}, {}, {4}, {}, {5}, {}, {6}, {}, {7}, {}}},
        Case{8,
             {1, 0},
             false,
             {{0}, {}, {1}, {}, {2}, {}, {3}, {}, {4}, {}, {5}, {}, {6}, {}, {7}, {}}}}) {
    const bool drops_batch = drop_remainder && elements % 4 == 0;
    const Dataset batches = Dataset::range(elements).batch(4, {.drop_remainder = drops_batch});
    EXPECT_EQ(pieces_of(rebatch(batches, sizes, {.drop_remainder = drop_remainder})), expected)
        << elements << " in " << join(sizes);
  }
}

TEST(Rebatch, LegacyCutsByCeiling) {
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(10).batch(4), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}, {9}}));
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(9).batch(4), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}, {}}));
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(10).batch(4, {.drop_remainder = true}), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(Rebatch, ScalarsAreRefused) {
  EXPECT_INVALID((void)pieces_of(rebatch_evenly(Dataset::range(4), 2)), "batch(");
}

TEST(Rebatch, OnlyTheOutermostDimensionIsCut) {
  const Dataset nested = Dataset::range(16).batch(2).batch(4);
  std::vector<Shape> shapes;
  std::int64_t next = 0;
  for (const Element& piece : rebatch(nested, {2, 2})) {
    shapes.push_back(piece[0].shape());
    for (std::int64_t value : piece[0].host_span<std::int64_t>()) EXPECT_EQ(value, next++);
  }
  EXPECT_EQ(shapes, (std::vector<Shape>{{2, 2}, {2, 2}, {2, 2}, {2, 2}}));
}

// The result of rebatch() can still be sharded by files.
TEST(Rebatch, KeepsFilesForSharding) {
  const Dataset batches = numbers_in(files_of({5, 5, 5})).batch(5);
  const Dataset even = rebatch_evenly(batches, 3);
  for (const AutoShardPolicy policy : {AutoShardPolicy::kFile, AutoShardPolicy::kAuto}) {
    EXPECT_EQ(pieces_of(auto_shard(rebatch(batches, {2, 1, 2}), 3, 1, policy)),
              (Step{{5, 6}, {7}, {8, 9}}));
    EXPECT_EQ(pieces_of(auto_shard(even, 3, 1, policy)), (Step{{5, 6}, {7, 8}, {9}}));
  }
}

TEST(Rebatch, RefusesSizesThatNeverAdvance) {
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {0, 0}), Error);
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {-1, 2}), Error);
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {}), Error);
  EXPECT_THROW((void)rebatch_evenly(Dataset::range(4).batch(2), 0), Error);
}

// Values that TensorFlow 2.21's MirroredStrategy gives its replicas.
TEST(ReplicaRows, AreCeiledAndTheTailIsShort) {
  EXPECT_EQ(replica_rows(10, 4), (Rows{3, 3, 3, 1}));
  EXPECT_EQ(replica_rows(6, 4), (Rows{2, 2, 2, 0}));
  EXPECT_EQ(replica_rows(5, 4), (Rows{2, 2, 1, 0}));
  EXPECT_EQ(replica_rows(7, 3), (Rows{3, 3, 1}));
  EXPECT_EQ(replica_rows(4, 3), (Rows{2, 2, 0}));
  EXPECT_EQ(replica_rows(10, 2), (Rows{5, 5}));
  EXPECT_EQ(replica_rows(0, 4), (Rows{0, 0, 0, 0}));
  EXPECT_EQ(replica_rows(3, 1), (Rows{3}));
}

TEST(ReplicaRows, WeightsSplitRowsByLargestRemainder) {
  EXPECT_EQ(weighted_replica_rows(128, std::vector<double>{3, 1}), (Rows{96, 32}));
  EXPECT_EQ(weighted_replica_rows(10, std::vector<double>{1, 1, 1}), (Rows{4, 3, 3}));
  EXPECT_EQ(weighted_replica_rows(0, std::vector<double>{1, 2}), (Rows{0, 0}));
  EXPECT_EQ(weighted_replica_rows(1, std::vector<double>{1, 2}), (Rows{0, 1}));
}

TEST(InputContext, PerReplicaBatchSizeAndText) {
  const InputContext context{2, 1, 6};
  EXPECT_EQ(context.num_input_pipelines, 2);
  EXPECT_EQ(context.input_pipeline_id, 1);
  EXPECT_EQ(context.get_per_replica_batch_size(12), 2);
  EXPECT_THROW((void)context.get_per_replica_batch_size(13), Error);
  EXPECT_EQ(context.to_string(), "input pipeline id 1, total: 2");
}

}  // namespace
}  // namespace tutti::input_tests
