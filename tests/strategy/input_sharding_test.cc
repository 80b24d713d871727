// Tests how input is sharded over several workers.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/input_workers.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/thrown.h"

namespace tutti::input_tests::input_sharding_test {
using strategy_tests::results_of_workers;
using strategy_tests::workers_with;

TEST(InputSharding, CanonicalRuleMatchesBatchesOfOneProcess) {
  const Dataset dataset = Dataset::range(45).shuffle(45, 3).batch(10);
  for (const auto& [workers, replicas] : {std::pair{2, 1}, {2, 2}, {4, 1}, {3, 2}, {1, 4}}) {
    const std::vector<Steps> passes = passes_of({.count = workers, .replicas = replicas}, dataset);
    EXPECT_EQ(all_replicas(passes), steps_of_one_process(workers * replicas, dataset))
        << workers << " x " << replicas;
  }
}

TEST(InputSharding, CanonicalRuleShardsFilesWithoutCommunication) {
  const Dataset dataset = numbers_in(files_of({9, 1, 4})).batch(4);
  std::vector<Steps> passes;
  for (int worker = 0; worker < 2; ++worker) {
    DistributedDataset part = make_distributed_dataset(dataset, plan_of({.count = 2}, worker));
    EXPECT_EQ(part.global_batch_size(), 4);
    passes.push_back(rest_of_pass(part));
  }
  EXPECT_EQ(passes[0], (Steps{{{0, 1}}, {{4, 5}}, {{8, 9}}, {{12}}}));
  EXPECT_EQ(passes[1], (Steps{{{2, 3}}, {{6, 7}}, {{10, 11}}, {{13}}}));
}

TEST(InputSharding, ReplicaBatchesReportOffsetInGlobalBatch) {
  const Dataset dataset = Dataset::range(11).batch(8);
  for (const InputOptions& options :
       {InputOptions{}, named(AutoShardPolicy::kData), named(AutoShardPolicy::kOff)}) {
    std::vector<Rows> first(2), global(2), rows(2);
    on_workers(
        {.count = 2, .options = options}, [&](int) { return dataset; },
        [&](int worker, DistributedDataset part) {
          const auto w = static_cast<std::size_t>(worker);
          for (const PerReplica<Batch>& batch : part) {
            first[w].push_back(batch[0].element().first_row());
            global[w].push_back(batch[0].global_rows());
            rows[w].push_back(batch[0].rows());
          }
        });
    EXPECT_EQ(global[0], global[1]);
    ASSERT_FALSE(first[1].empty());
    for (std::size_t s = 0; s < first[1].size(); ++s) {
      EXPECT_EQ(first[0][s], 0);
      EXPECT_EQ(first[1][s], rows[0][s]);
      EXPECT_EQ(global[1][s], rows[0][s] + rows[1][s]);
    }
  }
}

TEST(InputSharding, ReplicaWeightsApplyAcrossWorkers) {
  const Workers workers{.count = 2, .replicas = 2, .weights = {3, 1, 2, 2}};
  EXPECT_EQ(all_replicas(passes_of(workers, Dataset::range(16).batch(8))),
            (Steps{{{0, 1, 2}, {3}, {4, 5}, {6, 7}}, {{8, 9, 10}, {11}, {12, 13}, {14, 15}}}));
}

TEST(InputSharding, WorkerBatchSizesSumToGlobalBatchInEachStep) {
  for (const auto& [batch, workers, replicas] :
       {std::tuple{8, 2, 2}, {7, 2, 2}, {4, 3, 1}, {5, 3, 2}, {4, 5, 1}, {4, 2, 1}}) {
    // Every worker gets the same number of full batches.
    const int per_worker = workers * batch * 2;
    const Dataset dataset =
        numbers_in(files_of(std::vector<int>(static_cast<std::size_t>(workers), per_worker)))
            .batch(batch);
    const Steps steps = all_replicas(passes_of(
        {.count = workers, .replicas = replicas, .options = named(AutoShardPolicy::kFile)},
        dataset));
    EXPECT_EQ(std::ssize(steps), per_worker * workers / batch);
    for (const Step& step : steps) {
      const auto [low, high] =
          std::minmax_element(step.begin(), step.end(),
                              [](const Rows& a, const Rows& b) { return a.size() < b.size(); });
      EXPECT_LE(high->size() - low->size(), 1u);
      EXPECT_EQ(std::ssize(sorted_rows({step})), batch);
    }
    EXPECT_EQ(sorted_rows(steps), numbers_below(per_worker * workers));
  }
}

TEST(InputSharding, WorkersReadAndSplitBatchesByShardingRule) {
  const InputOptions off = named(AutoShardPolicy::kOff), file = named(AutoShardPolicy::kFile),
                     data = named(AutoShardPolicy::kData),
                     automatic{.sharding_rule = ShardingRule::kTensorFlow};
  // A map may change the number of rows, so the batch size is unknown after a map.
  const auto identity = [](const Element& element) { return element; };
  const Dataset of_unknown_size = numbers_in(files_of({5, 4})).batch(4).map(identity);
  struct Case {
    const char* name;
    InputOptions options;
    Dataset dataset;
    std::vector<Steps> expected;  // steps of each worker
  };
  for (const auto& [name, options, dataset, expected] :
       {Case{"sizes are rotated",
             off,
             Dataset::range(4).batch(4),
             {{{{0, 1}}, {{2}}, {{3}}}, {{{0}}, {{1}}, {{2, 3}}}, {{{0}}, {{1, 2}}, {{3}}}}},
        Case{"fewer rows than replicas",
             off,
             Dataset::range(4).batch(4),
             {{{{0}}, {{1}}, {{2}}, {{3}}, {{}}},
              {{{0}}, {{1}}, {{2}}, {{}}, {{3}}},
              {{{0}}, {{1}}, {{}}, {{2}}, {{3}}},
              {{{0}}, {{}}, {{1}}, {{2}}, {{3}}},
              {{{}}, {{0}}, {{1}}, {{2}}, {{3}}}}},
        Case{"batches of unknown size are cut evenly",
             file,
             of_unknown_size,
             {{{{0, 1}}, {{2, 3}}, {{4}}}, {{{5, 6}}, {{7, 8}}, {{}}}}},
        Case{"data are cut evenly",
             data,
             Dataset::range(8).batch(4),
             {{{{0, 1}}, {{4, 5}}}, {{{2, 3}}, {{6, 7}}}, {{{}}, {{}}}}},
        Case{"the tail of data is cut evenly",
             data,
             Dataset::range(14).batch(8),
             {{{{0, 1, 2, 3}}, {{8, 9, 10}}}, {{{4, 5, 6, 7}}, {{11, 12, 13}}}}},
        Case{"auto shards files",
             automatic,
             numbers_in(files_of({4, 4})).batch(4),
             {{{{0, 1}}, {{2, 3}}}, {{{4, 5}}, {{6, 7}}}}},
        Case{"auto shards elements where there are no files",
             automatic,
             Dataset::range(8).batch(4),
             {{{{0, 1}}, {{4, 5}}}, {{{2, 3}}, {{6, 7}}}}}}) {
    const int count = static_cast<int>(expected.size());
    EXPECT_EQ(passes_of({.count = count, .options = options}, dataset), expected) << name;
  }
}

TEST(InputSharding, WorkerWithoutFilesGetsEmptyBatches) {
  const Dataset dataset = numbers_in(files_of({5, 2})).batch(4);
  Rows shapes;
  std::vector<Steps> passes(3);
  on_workers(
      {.count = 3, .options = named(AutoShardPolicy::kFile)}, [&](int) { return dataset; },
      [&](int worker, DistributedDataset part) {
        EXPECT_EQ(part.cardinality(), std::nullopt);
        EXPECT_EQ(part.global_batch_size(), 4);
        for (const PerReplica<Batch>& batch : part) {
          passes[static_cast<std::size_t>(worker)].push_back(values_of(batch));
          if (worker < 2) continue;
          EXPECT_EQ(batch[0].features().dtype(), DType::kInt64);
          EXPECT_EQ(batch[0].features().shape(), (Shape{0}));
          shapes.push_back(batch[0].global_rows());
        }
      });
  EXPECT_EQ(passes[0], (Steps{{{0, 1}}, {{2}}, {{3}}, {{4}}}));
  EXPECT_EQ(passes[1], (Steps{{{5}}, {{6}}, {{}}, {{}}}));
  EXPECT_EQ(passes[2], (Steps{{{}}, {{}}, {{}}, {{}}}));
  EXPECT_EQ(shapes, (Rows{3, 2, 1, 1}));
}

// The expected steps are those of TensorFlow 2's MirroredStrategy with two and three CPU devices.
TEST(InputSharding, SingleWorkerSplitsBatchesByShardingRule) {
  const auto steps = [](int replicas, const Dataset& dataset, const InputOptions& options) {
    return passes_of({.replicas = replicas, .options = options}, dataset).front();
  };
  const InputOptions automatic{.sharding_rule = ShardingRule::kTensorFlow};
  const InputOptions file = named(AutoShardPolicy::kFile), off = named(AutoShardPolicy::kOff),
                     data = named(AutoShardPolicy::kData);
  const auto paths = files_of({9, 1, 4});
  const Dataset numbers = Dataset::range(13), from_files = numbers_in(paths);
  for (const InputOptions& options : {automatic, file, off}) {
    EXPECT_EQ(
        steps(3, from_files.batch(4), options),
        (Steps{{{0, 1}, {2}, {3}}, {{4, 5}, {6}, {7}}, {{8, 9}, {10}, {11}}, {{12, 13}, {}, {}}}));
    EXPECT_EQ(steps(3, from_files.take(10).batch(10), options),
              (Steps{{{0, 1, 2, 3}, {4, 5, 6}, {7, 8, 9}}}));
    EXPECT_EQ(steps(2, from_files.take(13).batch(5), options),
              (Steps{{{0, 1, 2}, {3, 4}}, {{5, 6, 7}, {8, 9}}, {{10, 11, 12}, {}}}));
  }
  const Steps even = {{{0, 1}, {2, 3}, {4}}, {{5, 6}, {7, 8}, {9}}, {{10}, {11}, {12}}};
  const Steps joined = {{{0, 1}, {2, 3}, {4}}, {{5, 6}, {7, 8}, {9}}, {{10, 11}, {12}, {}}};
  for (const InputOptions& options : {InputOptions{}, automatic, data}) {
    EXPECT_EQ(steps(3, numbers.batch(5), options), even);
  }
  for (const InputOptions& options : {file, off}) {
    EXPECT_EQ(steps(3, numbers.batch(5), options), joined);
  }
  // The batch size is unknown after a map.
  const auto identity = [](const Element& element) { return element; };
  EXPECT_EQ(steps(3, from_files.take(13).batch(5).map(identity), file), even);
  EXPECT_EQ(steps(3, from_files.take(10).batch(10), InputOptions{}),
            (Steps{{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}}));
}

TEST(InputSharding, ReplicaWeightsRequireCanonicalRule) {
  MirroredStrategy strategy({.devices = "cpu:0-1", .replica_weights = {2, 1}});
  EXPECT_INVALID(
      strategy.distribute_dataset(Dataset::range(6).batch(6), named(AutoShardPolicy::kOff)),
      "kTensorFlow", "no weights", "kCanonical");
}

TEST(InputSharding, EveryShardingPolicyReadsEachExampleOnce) {
  const Dataset files = numbers_in(files_of({7, 1, 12, 3, 0})).shuffle(5, 2).batch(6);
  for (const auto& [workers, replicas] : {std::pair{2, 1}, {3, 1}, {2, 3}, {6, 1}}) {
    for (const InputOptions& options :
         {InputOptions{}, named(AutoShardPolicy::kFile), named(AutoShardPolicy::kData),
          named(AutoShardPolicy::kAuto)}) {
      const Steps steps = all_replicas(
          passes_of({.count = workers, .replicas = replicas, .options = options}, files));
      EXPECT_EQ(sorted_rows(steps), numbers_below(23)) << workers << " x " << replicas;
    }
  }
}

/// Returns the steps if each replica gets an undivided batch of a sharded dataset, as in the
/// low-level API.
std::vector<Steps> whole_batches(const Workers& workers, const Dataset& dataset,
                                 AutoShardPolicy policy) {
  Workers whole = workers;
  whole.cut = InputCut::kWhole;
  return passes_of(whole,
                   [&](int worker) { return auto_shard(dataset, workers.count, worker, policy); });
}

TEST(InputSharding, WholeBatchesAreDistributedOverAllWorkers) {
  struct Case {
    int replicas;  // number of replicas on each of two workers
    Dataset dataset;
    AutoShardPolicy policy;
    Steps expected;
  };
  constexpr auto kAuto = AutoShardPolicy::kAuto, kOff = AutoShardPolicy::kOff;
  const Dataset batches = Dataset::range(9).batch(2);
  for (const auto& [replicas, dataset, policy, expected] :
       {Case{1, Dataset::range(4), kAuto, {{{0}, {1}}, {{2}, {3}}}},
        Case{1, Dataset::range(4), kOff, {{{0}, {0}}, {{1}, {1}}, {{2}, {2}}, {{3}, {3}}}},
        // The pass over a dataset of scalars ends when the shorter shard ends.
        Case{1, Dataset::range(5), kAuto, {{{0}, {1}}, {{2}, {3}}}},
        Case{1, Dataset::range(5).batch(2), AutoShardPolicy::kData, {{{0, 1}, {2, 3}}, {{4}, {}}}},
        Case{2, batches, kAuto, {{{0, 1}, {4, 5}, {2, 3}, {6, 7}}, {{8}, {}, {}, {}}}},
        Case{2,
             batches,
             kOff,
             {{{0, 1}, {2, 3}, {0, 1}, {2, 3}},
              {{4, 5}, {6, 7}, {4, 5}, {6, 7}},
              {{8}, {}, {8}, {}}}}}) {
    EXPECT_EQ(all_replicas(whole_batches({.count = 2, .replicas = replicas}, dataset, policy)),
              expected)
        << replicas << " replicas of each worker, policy " << to_string(policy);
  }
}

TEST(InputSharding, FinishedWorkerSuppliesEmptyBatches) {
  const Workers workers{.count = 2, .replicas = 2, .cut = InputCut::kWhole};
  const Steps steps = all_replicas(
      passes_of(workers, [](int worker) { return Dataset::range(8 + worker).batch(2); }));
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps.back(), (Step{{}, {}, {8}, {}}));
}

TEST(InputSharding, LastBatchOfDatasetFromFunctionIsNotSplit) {
  const std::vector<Steps> passes =
      passes_of({.count = 2, .cut = InputCut::kWhole},
                [](int worker) { return Dataset::range(14).batch(4).shard(2, worker); });
  ASSERT_EQ(passes[0].size(), 2u);
  EXPECT_EQ(passes[0][1], (Step{{8, 9, 10, 11}}));
  EXPECT_EQ(passes[1][1], (Step{{12, 13}}));
}

/// Runs two workers with two replicas each. Returns the steps of all replicas in one pass over the
/// dataset that `distribute` creates.
template <class Distribute>
Steps steps_of_two_strategies(const Distribute& distribute) {
  return all_replicas(results_of_workers(workers_with({2, 2}), [&](Strategy& strategy) {
    DistributedDataset dataset = distribute(strategy);
    return rest_of_pass(dataset);
  }));
}

TEST(InputSharding, EachInputPipelineReadsItsOwnDataset) {
  std::vector<std::string> contexts(2);
  const Steps steps = steps_of_two_strategies([&](Strategy& strategy) {
    DistributedDataset dataset =
        strategy.distribute_datasets_from_function([&](const InputContext& context) {
          contexts[static_cast<std::size_t>(strategy.worker())] =
              concat(context.to_string(), ", ", context.get_per_replica_batch_size(8));
          return Dataset::range(8).batch(2);
        });
    EXPECT_EQ(dataset.global_batch_size(), 8);
    return dataset;
  });
  EXPECT_EQ(contexts, (std::vector<std::string>{"input pipeline id 0, total: 2, 2",
                                                "input pipeline id 1, total: 2, 2"}));
  EXPECT_EQ(steps, (Steps{{{0, 1}, {2, 3}, {0, 1}, {2, 3}}, {{4, 5}, {6, 7}, {4, 5}, {6, 7}}}));
}

TEST(InputSharding, BatchesReachReplicasOfAllWorkers) {
  for (const auto& [count, batch] : {std::pair{4, 2}, {3, 2}, {2, 1}}) {
    const Dataset data = Dataset::range(5, 5 + count).batch(batch);
    EXPECT_EQ(steps_of_two_strategies([&](auto& each) { return each.distribute_dataset(data); }),
              steps_of_one_process(4, data));
  }
  // Elements are not batched: each replica gets one element.
  const auto unbatched = [](const InputContext& context) {
    return Dataset::range(5, 9)
        .batch(2)
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .unbatch();
  };
  EXPECT_EQ(steps_of_two_strategies(
                [&](auto& each) { return each.distribute_datasets_from_function(unbatched); }),
            (Steps{{{5}, {6}, {7}, {8}}}));
}

/// Interrupts two passes after every possible number of steps, and expects a new dataset to resume
/// at that position.
void expect_positions_go_on(const Workers& workers, const Dataset& dataset) {
  const auto make = [&](int) { return dataset; };
  const auto count = static_cast<std::size_t>(workers.count);
  const auto collect = [](DistributedDataset& part, Steps& seen, std::size_t size) {
    while (seen.size() < size) {
      for (const PerReplica<Batch>& batch : part) {
        seen.push_back(values_of(batch));
        if (seen.size() == size) break;
      }
    }
  };
  const std::size_t two_epochs = 2 * passes_of(workers, dataset)[0].size();
  ASSERT_GT(two_epochs, 4u);
  std::vector<Steps> straight(count);
  on_workers(workers, make, [&](int worker, DistributedDataset part) {
    collect(part, straight[static_cast<std::size_t>(worker)], two_epochs);
  });
  for (std::size_t stop = 0; stop < two_epochs; ++stop) {
    std::vector<Json> positions(count);
    std::vector<Steps> seen(count);
    on_workers(workers, make, [&](int worker, DistributedDataset part) {
      const auto w = static_cast<std::size_t>(worker);
      collect(part, seen[w], stop);
      positions[w] = Json::parse(part.position().dump());
    });
    EXPECT_EQ(positions.front().dump(), positions.back().dump());
    on_workers(workers, make, [&](int worker, DistributedDataset part) {
      const auto w = static_cast<std::size_t>(worker);
      part.restore(positions[w]);
      collect(part, seen[w], two_epochs);
    });
    EXPECT_EQ(seen, straight) << "stopped after " << stop;
  }
}

TEST(InputSharding, InputResumesAtRestoredPositionUnderEveryRule) {
  const Dataset numbers = numbers_in(files_of({3, 1, 5, 2}));
  for (const InputOptions& options :
       {InputOptions{}, named(AutoShardPolicy::kFile), named(AutoShardPolicy::kData),
        named(AutoShardPolicy::kOff),
        InputOptions{.prefetch = 0, .auto_shard_policy = AutoShardPolicy::kFile}}) {
    const Workers workers{.count = 3, .options = options};
    expect_positions_go_on(workers, numbers.shuffle(4, 7).batch(4));
    // Batches are smaller than the number of replicas, so in some steps a worker gets no rows and
    // skips the step.
    expect_positions_go_on(workers, numbers.batch(2));
  }
  expect_positions_go_on({.replicas = 2}, Dataset::range(20).shuffle(20, 7).batch(4));
}

TEST(InputSharding, InvalidPlansAreRejected) {
  const Dataset batches = Dataset::range(8).batch(4);
  const auto distribute = [&](const InputPlan& plan) {
    (void)make_distributed_dataset(batches, plan);
  };
  const auto with_rows = [](InputPlan plan) {
    plan.rows_of_workers = [](std::int64_t rows) { return Rows{rows, rows}; };
    return plan;
  };
  const Workers by_file{.count = 2, .options = named(AutoShardPolicy::kFile)};
  const Workers by_data{.count = 2, .options = named(AutoShardPolicy::kData)};
  // The first plan has no files to shard by; the other two have no rows_of_workers().
  EXPECT_ERROR(distribute(with_rows(plan_of(by_file, 0))), kNotFound);
  EXPECT_ERROR(distribute(plan_of(by_data, 0)), kFailedPrecondition);
  EXPECT_ERROR(distribute(plan_of({.count = 2, .cut = InputCut::kWhole}, 0)), kFailedPrecondition);
  // If workers have different numbers of replicas, TensorFlow's rule yields the global batch only
  // by chance, so the plan is rejected.
  InputPlan unequal = with_rows(plan_of(by_data, 1));
  unequal.first_replica = 2;
  unequal.num_replicas_in_sync = 3;
  EXPECT_ERROR(distribute(unequal), kInvalidArgument);
  unequal.options = {};
  EXPECT_NO_THROW(distribute(unequal));
  Workers weighted = by_data;
  weighted.weights = {1, 2};
  EXPECT_ERROR(distribute(with_rows(plan_of(weighted, 0))), kInvalidArgument);
  // These numbers of workers and replicas are inconsistent.
  InputPlan outside = plan_of({.count = 2}, 0);
  outside.worker = 2;
  EXPECT_ERROR(distribute(outside), kInvalidArgument);
  outside = plan_of({.count = 2}, 1);
  outside.first_replica = 2;
  EXPECT_ERROR(distribute(outside), kInvalidArgument);
}

TEST(InputSharding, EmptyDatasetFromFunctionIsRejected) {
  InputPlan plan = plan_of({.count = 2, .cut = InputCut::kWhole}, 1);
  plan.rows_of_workers = [](std::int64_t rows) { return Rows{2, rows}; };
  DistributedDataset dataset =
      make_distributed_dataset(Dataset::range(0).batch(2), std::move(plan));
  EXPECT_ERROR((void)dataset.begin(), kFailedPrecondition);
}

TEST(InputSharding, UnbatchedDatasetIsRejectedUnderDataPolicy) {
  InputPlan plan = plan_of({.count = 2, .options = named(AutoShardPolicy::kData)}, 0);
  plan.rows_of_workers = [](std::int64_t rows) { return Rows{rows, rows}; };
  EXPECT_INVALID(make_distributed_dataset(Dataset::range(8), plan));
}

}  // namespace tutti::input_tests::input_sharding_test
