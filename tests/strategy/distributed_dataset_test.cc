// Tests distributed input with one worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input/distributed_dataset.h"

#include "tests/strategy/input_workers.h"
#include "tests/support/thrown.h"
#include "tutti/data/tar.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::input_tests {
namespace {

Steps steps_of(DistributedDataset dataset) { return rest_of_pass(dataset); }

Dataset vector_dataset(std::vector<float> data) {
  const auto count = static_cast<std::int64_t>(data.size());
  return Dataset::from_tensor_slices({Tensor::from({count}, data)});
}

TEST(DistributedDataset, ByFunctionElementsGoToReplicasWholeInEachPass) {
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

TEST(DistributedDataset, ComponentsStayTogether) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const Dataset squares =
      Dataset::range(4).map([](const Element& e) { return Element({multiply(e[0], e[0])}); });
  const Dataset pairs = Dataset::zip({Dataset::range(4), squares});
  for (DistributedDataset dataset :
       {strategy.distribute_datasets_from_function([&](const InputContext&) { return pairs; }),
        strategy.distribute_dataset(pairs.batch(2))}) {
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

// Example from the documentation of tf.distribute.
TEST(DistributedDataset, GlobalBatchesAreSplitInCeiledShares) {
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

/// Returns, for each replica's batch, its first row in the global batch, its number of rows, and
/// the rows of the global batch.
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

TEST(DistributedDataset, PiecesKnowTheirPlaceAndWeightsGiveUnequalShares) {
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

TEST(DistributedDataset, EachPieceIsOnTheDeviceOfItsReplica) {
  MirroredStrategy strategy({.devices = "cpu:2-3"});
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(Dataset::range(4).batch(4))) {
    EXPECT_EQ(batch[0].features().device(), Device::parse("cpu:2"));
    EXPECT_EQ(batch[1].features().device(), Device::parse("cpu:3"));
  }
}

// Corresponds to tf's testPrefetchToHostDataset: experimental_fetch_to_device=False.
TEST(DistributedDataset, PrefetchToHostKeepsThePiecesInTheHostsMemory) {
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

TEST(DistributedDataset, DatasetsOnDevicesAreRefused) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const InputOptions options{.place_dataset_on_device = true};
  thrown::expect_error(
      ErrorCode::kUnimplemented, {"place_dataset_on_device", "fetch_to_device"},
      [&] { (void)strategy.distribute_dataset(Dataset::range(4).batch(4), options); });
  thrown::expect_error(ErrorCode::kUnimplemented, {"place_dataset_on_device"}, [&] {
    (void)strategy.distribute_datasets_from_function(
        [](const InputContext&) { return Dataset::range(4).batch(2); }, options);
  });
}

TEST(DistributedDataset, ShapesMayDifferBetweenReplicas) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_datasets_from_function([](const InputContext&) {
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
        strategy.run([](const Batch& part) { return reduce_mean(part.features()); }, batch);
    EXPECT_FLOAT_EQ(means[0].item(), 1.5f);
    EXPECT_FLOAT_EQ(means[1].item(), 2.0f);
    ++steps;
  }
  EXPECT_EQ(steps, 1);
}

TEST(DistributedDataset, IterationPastTheEndIsOutOfRange) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(vector_dataset({5, 6, 7, 8}).batch(2));
  const auto scope = strategy.scope();
  Variable a(Tensor(0.0f), {.aggregation = VariableAggregation::kSum});
  DistributedDataset::Iterator it = dataset.begin();
  int steps = 0;
  const auto take_100 = [&] {
    for (; steps < 100; ++it, ++steps) {
      strategy.run([&a](const Batch& part) { a.assign_add(reduce_sum(part.features())); }, *it);
    }
  };
  thrown::expect_error(ErrorCode::kOutOfRange, {"DistributedDataset", "end()"}, take_100);
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

// Covers scalars, and vectors that could be split; nothing is read.
TEST(DistributedDataset, SingleExamplesAreRefusedWhereTheyAreDistributed) {
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

// Elements that may be batches are treated as batches.
TEST(DistributedDataset, BatchesOfEverySourceAreTaken) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
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
    EXPECT_EQ(steps_of(strategy.distribute_dataset(dataset)), (Steps{{{0, 1}, {2, 3}}}));
  }
}

// If their rank is not known in advance, scalars are detected when they are read.
TEST(DistributedDataset, ScalarsBehindAMapAreRefusedWhenTheyCome) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(
      Dataset::range(4).map([](const Element& element) { return element; }));
  EXPECT_INVALID((void)dataset.begin(), "not batched", "batch(global_batch_size)");
}

TEST(DistributedDataset, PositionOfAnotherGlobalBatchIsRefusedWithinAnEpoch) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset small = strategy.distribute_dataset(Dataset::range(20).batch(4));
  DistributedDataset large = strategy.distribute_dataset(Dataset::range(20).batch(8));
  large.restore(small.position());
  EXPECT_EQ(steps_of(large).size(), 3u) << "between epochs";
  auto iterator = small.begin();
  for (int i = 0; i < 2; ++i) ++iterator;
  EXPECT_ERROR(large.restore(small.position()), kFailedPrecondition, "3 global batches of 4 rows",
               "got 8", "batch size of before");
}

TEST(DistributedDataset, AnOlderIteratorEnds) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(8).batch(2));
  DistributedDataset::Iterator old = dataset.begin();
  DistributedDataset::Iterator newest = dataset.begin();
  EXPECT_THROW(++old, Error);
  EXPECT_NO_THROW(++newest);
}

}  // namespace
}  // namespace tutti::input_tests
