// Tests distributed input of one worker, the splitting of global batches, and InputContext.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input/distributed_dataset.h"

#include "tests/strategy/input_workers.h"
#include "tests/support/thrown.h"
#include "tutti/data/tar.h"
#include "tutti/strategy/input/input_plan.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::input_tests::distributed_dataset_test {

Steps steps_of(DistributedDataset dataset) { return rest_of_pass(dataset); }

Dataset vector_dataset(std::vector<float> data) {
  const auto count = static_cast<std::int64_t>(data.size());
  return Dataset::from_tensor_slices({Tensor::from({count}, data)});
}

class DistributedDatasetTest : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{"cpu:0-1"};
};

TEST_F(DistributedDatasetTest, DatasetFromFunctionIsNotSplitFurther) {
  struct Case {
    int replicas;
    Dataset data;
    Steps expected;
  };
  for (const Case& each :
       {Case{1, Dataset::range(3), {{{0}}, {{1}}, {{2}}}},
        Case{2, Dataset::range(6), {{{0}, {1}}, {{2}, {3}}, {{4}, {5}}}},
        Case{4, vector_dataset({5, 6, 7, 8}), {{{5}, {6}, {7}, {8}}}},
        Case{2, Dataset::range(8).batch(2), {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}}}}) {
    SCOPED_TRACE(concat(each.replicas, " replicas: ", ::testing::PrintToString(each.expected)));
    MirroredStrategy strategy(concat("cpu:0-", each.replicas - 1));
    int calls = 0;
    DistributedDataset dataset =
        strategy.distribute_datasets_from_function([&](const InputContext& context) {
          ++calls;
          EXPECT_EQ(context.num_replicas_in_sync, each.replicas);
          EXPECT_EQ(context.num_input_pipelines, 1);
          EXPECT_EQ(context.input_pipeline_id, 0);
          return each.data;
        });
    for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(rest_of_pass(dataset), each.expected);
    EXPECT_EQ(calls, 1);
  }
}

TEST_F(DistributedDatasetTest, FeaturesAndLabelsStayPaired) {
  const Dataset squares =
      Dataset::range(4).map([](const Element& e) { return Element({multiply(e[0], e[0])}); });
  const Dataset pairs = Dataset::zip({Dataset::range(4), squares});
  for (DistributedDataset dataset :
       {strategy_.distribute_datasets_from_function([&](const InputContext&) { return pairs; }),
        strategy_.distribute_dataset(pairs.batch(2))}) {
    std::int64_t i = 0;
    for (const PerReplica<Batch>& batch : dataset) {
      for (const Batch& part : batch) {
        EXPECT_EQ(rows_of(part.features()), Rows{i});
        EXPECT_EQ(rows_of(part.labels()), Rows{i * i});
        ++i;
      }
    }
    EXPECT_EQ(i, 4);
  }
}

// The cases include the example in the documentation of tf.distribute.
TEST_F(DistributedDatasetTest, GlobalBatchesAreSplitByCeilingDivision) {
  struct Case {
    int replicas, elements, batch;
    Steps expected;
  };
  for (const auto& [replicas, elements, batch, expected] :
       {Case{2, 10, 10, {{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}}}},
        Case{2, 6, 4, {{{0, 1}, {2, 3}}, {{4}, {5}}}}, Case{5, 4, 4, {{{0}, {1}, {2}, {3}, {}}}},
        Case{3, 8, 4, {{{0, 1}, {2, 3}, {}}, {{4, 5}, {6, 7}, {}}}},
        Case{4, 13, 10, {{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9}}, {{10}, {11}, {12}, {}}}}}) {
    EXPECT_EQ(steps_of_one_process(replicas, Dataset::range(elements).batch(batch)), expected)
        << replicas << " replicas";
  }
}

/// Returns three numbers for each replica's batch: the index of its first row in the global batch,
/// its row count, and the row count of the global batch.
Steps places_of(DistributedDataset dataset) {
  Steps steps;
  for (const PerReplica<Batch>& batch : dataset) {
    Step& step = steps.emplace_back();
    for (const Batch& part : batch) {
      step.push_back({part.element().first_row(), part.rows(), part.global_rows()});
    }
  }
  return steps;
}

TEST_F(DistributedDatasetTest, ReplicaBatchesReportOffsetsAndRespectReplicaWeights) {
  MirroredStrategy four({.devices = "cpu:0-3"});
  const DistributedDataset dataset = four.distribute_dataset(Dataset::range(13).batch(10));
  EXPECT_EQ(dataset.global_batch_size(), 10);
  EXPECT_EQ(dataset.cardinality(), 2);
  EXPECT_EQ(places_of(dataset), (Steps{{{0, 3, 10}, {3, 3, 10}, {6, 3, 10}, {9, 1, 10}},
                                       {{0, 1, 3}, {1, 1, 3}, {2, 1, 3}, {3, 0, 3}}}));
  MirroredStrategy weighted({.devices = "cpu:0-1", .replica_weights = {3, 1}});
  EXPECT_EQ(steps_of(weighted.distribute_dataset(Dataset::range(8).batch(8))),
            (Steps{{{0, 1, 2, 3, 4, 5}, {6, 7}}}));
  EXPECT_EQ(places_of(weighted.distribute_dataset(Dataset::range(128).batch(128))),
            (Steps{{{0, 96, 128}, {96, 32, 128}}}));
}

TEST_F(DistributedDatasetTest, ReplicaBatchesAreOnReplicaDevices) {
  MirroredStrategy strategy({.devices = "cpu:2-3"});
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(Dataset::range(4).batch(4))) {
    EXPECT_EQ(batch[0].features().device(), Device::parse("cpu:2"));
    EXPECT_EQ(batch[1].features().device(), Device::parse("cpu:3"));
  }
}

// Corresponds to tf's testPrefetchToHostDataset: experimental_fetch_to_device=False.
TEST_F(DistributedDatasetTest, PrefetchToHostKeepsBatchesInHostMemory) {
  MirroredStrategy strategy({.devices = "cpu:2-3"});
  const auto scope = strategy.scope();
  const Variable two(Tensor::full({2}, 2.0, DType::kFloat32));
  const Dataset data = vector_dataset({0, 1, 2, 3}).batch(4);
  const auto by_function = [&](const InputContext&) {
    return vector_dataset({0, 1, 2, 3}).batch(2);
  };
  const InputOptions options{.fetch_to_device = false};
  for (const DistributedDataset& dataset :
       {strategy.distribute_dataset(data, options),
        strategy.distribute_datasets_from_function(by_function, options)}) {
    DistributedDataset batches = dataset;
    for (const PerReplica<Batch>& batch : batches) {
      for (const Batch& part : batch) EXPECT_EQ(part.features().device(), Device{});
      const auto doubled =
          strategy.run([&](const Batch& part) { return part.features() * two.value(); }, batch);
      EXPECT_EQ(doubled[0].device(), Device::parse("cpu:2"));
      EXPECT_EQ(doubled[1].device(), Device::parse("cpu:3"));
      EXPECT_EQ(rows_of(strategy.gather(doubled, 0)), (Rows{0, 2, 4, 6}));
    }
  }
}

TEST_F(DistributedDatasetTest, PlacingDatasetOnDeviceIsUnimplemented) {
  const InputOptions options{.place_dataset_on_device = true};
  const auto by_function = [](const InputContext&) { return Dataset::range(4).batch(2); };
  EXPECT_ERROR(strategy_.distribute_dataset(Dataset::range(4).batch(4), options), kUnimplemented,
               "place_dataset_on_device", "fetch_to_device");
  EXPECT_ERROR(strategy_.distribute_datasets_from_function(by_function, options), kUnimplemented,
               "place_dataset_on_device");
}

TEST_F(DistributedDatasetTest, ShapesMayDifferBetweenReplicas) {
  DistributedDataset dataset = strategy_.distribute_datasets_from_function([](const InputContext&) {
    return Dataset::from_generator([](std::uint64_t) {
      return [i = 0]() mutable -> std::optional<Element> {
        ++i;
        if (i == 1) return Element({Tensor::from<float>({2, 2}, {1, 2, 1, 2})});
        if (i == 2) return Element({Tensor::from<float>({2, 3}, {1, 2, 3, 1, 2, 3})});
        return std::nullopt;
      };
    });
  });
  int steps = 0;
  for (const auto& batch : dataset) {
    const auto means =
        strategy_.run([](const Batch& part) { return reduce_mean(part.features()); }, batch);
    EXPECT_FLOAT_EQ(means[0].item(), 1.5f);
    EXPECT_FLOAT_EQ(means[1].item(), 2.0f);
    ++steps;
  }
  EXPECT_EQ(steps, 1);
}

TEST_F(DistributedDatasetTest, IteratingPastEndThrowsOutOfRange) {
  DistributedDataset dataset = strategy_.distribute_dataset(vector_dataset({5, 6, 7, 8}).batch(2));
  const auto scope = strategy_.scope();
  Variable a(Tensor(0.0f), {.aggregation = VariableAggregation::kSum});
  DistributedDataset::Iterator it = dataset.begin();
  int steps = 0;
  const auto take_100 = [&] {
    for (; steps < 100; ++it, ++steps) {
      strategy_.run([&a](const Batch& part) { a.assign_add(reduce_sum(part.features())); }, *it);
    }
  };
  EXPECT_ERROR(take_100(), kOutOfRange, "DistributedDataset", "end()");
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(a.value().item(), 26.0f);
  EXPECT_TRUE(it == dataset.end());
  EXPECT_ERROR((void)it->size(), kOutOfRange, "DistributedDataset");
  EXPECT_ERROR((void)*DistributedDataset::Iterator(), kOutOfRange, "DistributedDataset");
}

void expect_refused(const Dataset& dataset) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  for (const InputOptions& options :
       {InputOptions{}, InputOptions{.sharding_rule = ShardingRule::kTensorFlow}}) {
    EXPECT_INVALID((void)strategy.distribute_dataset(dataset, options), "not batched",
                   "batch(global_batch_size)");
  }
}

// Covers scalars, and vectors that could be split; no element is read.
TEST_F(DistributedDatasetTest, UnbatchedDatasetsAreRejected) {
  const Dataset pairs =
      Dataset::from_tensor_slices({Tensor::ones({64, 10}), Tensor::ones({64, 10})});
  expect_refused(Dataset::range(4));
  expect_refused(pairs);
  expect_refused(pairs.shuffle(64, 1).repeat(2).take(100).skip(3).shard(2, 0).cache().prefetch(2));
  expect_refused(pairs.filter([](const Element&) { return true; }).enumerate());
  expect_refused(pairs.take_while([](const Element&) { return true; }));
  expect_refused(pairs.batch(8).unbatch());
  expect_refused(Dataset::zip({pairs, Dataset::range(64)}));
  expect_refused(pairs.concatenate(pairs.batch(4).unbatch()));
  expect_refused(tfrecord_dataset({"no such file"}));
  expect_refused(tar_dataset({"no such file"}));
}

// An element that may be a batch is treated as a batch.
TEST_F(DistributedDatasetTest, BatchesFromEverySourceAreAccepted) {
  const Tensor ten = Tensor::from<float>({4}, {0, 1, 2, 3});
  const Dataset rows = vector_dataset({0, 1, 2, 3});
  const auto identity = [](const Element& element) { return element; };
  const auto generator = [&](std::uint64_t) {
    return [ten, left = 1]() mutable {
      return left-- > 0 ? std::optional(Element({ten})) : std::nullopt;
    };
  };
  const Dataset steps =
      Dataset::from_tensor_slices({ten.detached_reshape({1, 4})});  // [steps, rows]
  for (const Dataset& dataset :
       {rows.batch(4), rows.padded_batch(4), rows.batch(2).unbatch().batch(4),
        rows.batch(4).batch(1).unbatch(), rows.batch(4).shuffle(2, 1).repeat(1),
        Dataset::from_tensors({ten}), Dataset::from_generator(generator), steps.map(identity),
        steps.unbatch().batch(4),
        Dataset::range(1).map([&](const Element&) { return Element({ten}); }),
        Dataset::range(1).interleave([&](const Element&) { return rows.batch(4); }),
        Dataset::range(1).flat_map([&](const Element&) { return rows.batch(4); })}) {
    EXPECT_EQ(steps_of(strategy_.distribute_dataset(dataset)), (Steps{{{0, 1}, {2, 3}}}));
  }
}

// If the rank of elements is unknown in advance, scalars are detected when they are read.
TEST_F(DistributedDatasetTest, MappedScalarsAreRejectedWhenRead) {
  DistributedDataset dataset = strategy_.distribute_dataset(
      Dataset::range(4).map([](const Element& element) { return element; }));
  EXPECT_INVALID((void)dataset.begin(), "not batched", "batch(global_batch_size)");
}

TEST_F(DistributedDatasetTest, MidEpochRestoreWithDifferentBatchSizeFails) {
  DistributedDataset small = strategy_.distribute_dataset(Dataset::range(20).batch(4));
  DistributedDataset large = strategy_.distribute_dataset(Dataset::range(20).batch(8));
  large.restore(small.position());
  EXPECT_EQ(steps_of(large).size(), 3u) << "between epochs";
  auto iterator = small.begin();
  for (int i = 0; i < 2; ++i) ++iterator;
  EXPECT_ERROR(large.restore(small.position()), kFailedPrecondition, "3 global batches of 4 rows",
               "got 8", "previous batch size");
}

TEST_F(DistributedDatasetTest, NewIteratorInvalidatesOlderIterator) {
  DistributedDataset dataset = strategy_.distribute_dataset(Dataset::range(8).batch(2));
  DistributedDataset::Iterator old = dataset.begin();
  DistributedDataset::Iterator newest = dataset.begin();
  EXPECT_THROW(++old, Error);
  EXPECT_NO_THROW(++newest);
}

Step pieces_of(const Dataset& dataset) {
  Step pieces;
  for (const Element& element : dataset) {
    const auto values = element[0].host_span<std::int64_t>();
    pieces.emplace_back(values.begin(), values.end());
  }
  return pieces;
}

TEST(Rebatch, SizesAreEvenAndSumToGlobalBatch) {
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

TEST(Rebatch, WorkersTakeTurnsReceivingLargestBatch) {
  EXPECT_EQ(batch_sizes_for_worker(8, 2, 2, 1), (Rows{2, 2, 2, 2}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 0), (Rows{2, 1, 1}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 1), (Rows{1, 1, 2}));
  EXPECT_EQ(batch_sizes_for_worker(4, 3, 1, 2), (Rows{1, 2, 1}));
  // With fewer rows than replicas, some sizes are 0.
  EXPECT_EQ(batch_sizes_for_worker(4, 1, 5, 0), (Rows{1, 1, 1, 1, 0}));
  EXPECT_EQ(batch_sizes_for_worker(4, 5, 1, 1), (Rows{1, 1, 1, 0, 1}));
  EXPECT_THROW((void)batch_sizes_for_worker(4, 2, 1, 2), Error);
}

TEST(Rebatch, SplitsEachBatchOfFourRows) {
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
        // The rows of a smaller last batch are distributed in order.
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

TEST(Rebatch, EvenRebatchUsesCeilingDivision) {
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(10).batch(4), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}, {9}}));
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(9).batch(4), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}, {}}));
  EXPECT_EQ(pieces_of(rebatch_evenly(Dataset::range(10).batch(4, {.drop_remainder = true}), 2)),
            (Step{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(Rebatch, SplitsOnlyOutermostDimension) {
  const Dataset nested = Dataset::range(16).batch(2).batch(4);
  std::vector<Shape> shapes;
  std::int64_t next = 0;
  for (const Element& piece : rebatch(nested, {2, 2})) {
    shapes.push_back(piece[0].shape());
    for (std::int64_t value : piece[0].host_span<std::int64_t>()) EXPECT_EQ(value, next++);
  }
  EXPECT_EQ(shapes, (std::vector<Shape>{{2, 2}, {2, 2}, {2, 2}, {2, 2}}));
}

// rebatch() preserves the file names of its input, so its result can still be sharded by files.
TEST(Rebatch, ResultCanBeShardedByFile) {
  const Dataset batches = numbers_in(files_of({5, 5, 5})).batch(5);
  const Dataset even = rebatch_evenly(batches, 3);
  for (const AutoShardPolicy policy : {AutoShardPolicy::kFile, AutoShardPolicy::kAuto}) {
    EXPECT_EQ(pieces_of(auto_shard(rebatch(batches, {2, 1, 2}), 3, 1, policy)),
              (Step{{5, 6}, {7}, {8, 9}}));
    EXPECT_EQ(pieces_of(auto_shard(even, 3, 1, policy)), (Step{{5, 6}, {7, 8}, {9}}));
  }
}

TEST(Rebatch, RejectsScalarsAndInvalidSizes) {
  EXPECT_INVALID((void)pieces_of(rebatch_evenly(Dataset::range(4), 2)), "batch(");
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {0, 0}), Error);
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {-1, 2}), Error);
  EXPECT_THROW((void)rebatch(Dataset::range(4).batch(2), {}), Error);
  EXPECT_THROW((void)rebatch_evenly(Dataset::range(4).batch(2), 0), Error);
}

// The expected values are those that TensorFlow 2.21's MirroredStrategy gives its replicas.
TEST(ReplicaRows, RowsAreSplitByCeilingDivision) {
  EXPECT_EQ(replica_rows(10, 4), (Rows{3, 3, 3, 1}));
  EXPECT_EQ(replica_rows(6, 4), (Rows{2, 2, 2, 0}));
  EXPECT_EQ(replica_rows(5, 4), (Rows{2, 2, 1, 0}));
  EXPECT_EQ(replica_rows(7, 3), (Rows{3, 3, 1}));
  EXPECT_EQ(replica_rows(4, 3), (Rows{2, 2, 0}));
  EXPECT_EQ(replica_rows(10, 2), (Rows{5, 5}));
  EXPECT_EQ(replica_rows(0, 4), (Rows{0, 0, 0, 0}));
  EXPECT_EQ(replica_rows(3, 1), (Rows{3}));
}

TEST(ReplicaRows, WeightedSplitUsesLargestRemainder) {
  EXPECT_EQ(weighted_replica_rows(128, std::vector<double>{3, 1}), (Rows{96, 32}));
  EXPECT_EQ(weighted_replica_rows(10, std::vector<double>{1, 1, 1}), (Rows{4, 3, 3}));
  EXPECT_EQ(weighted_replica_rows(0, std::vector<double>{1, 2}), (Rows{0, 0}));
  EXPECT_EQ(weighted_replica_rows(1, std::vector<double>{1, 2}), (Rows{0, 1}));
}

TEST(InputContext, ReportsPerReplicaBatchSizeAndDescription) {
  const InputContext context{2, 1, 6};
  EXPECT_EQ(context.num_input_pipelines, 2);
  EXPECT_EQ(context.input_pipeline_id, 1);
  EXPECT_EQ(context.get_per_replica_batch_size(12), 2);
  EXPECT_THROW((void)context.get_per_replica_batch_size(13), Error);
  EXPECT_EQ(context.to_string(), "input pipeline id 1, total: 2");
}

}  // namespace tutti::input_tests::distributed_dataset_test
