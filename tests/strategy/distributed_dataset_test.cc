// Distributed input with one worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input/distributed_dataset.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"
#include "tutti/data/records.h"
#include "tutti/data/tar.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace distributed_dataset_test {

using Rows = std::vector<std::int64_t>;
using Step = std::vector<Rows>;

Rows values(const Tensor& tensor) {
  Rows rows;
  for (double value : tensor.to_doubles()) rows.push_back(static_cast<std::int64_t>(value));
  return rows;
}

// Every step of one pass: the features of each replica.
std::vector<Step> steps_of(DistributedDataset dataset) {
  std::vector<Step> steps;
  for (const PerReplica<Batch>& batch : dataset) {
    Step step;
    for (const Batch& part : batch) step.push_back(values(part.features()));
    steps.push_back(step);
  }
  return steps;
}

Dataset vector_dataset(std::vector<float> data) {
  const auto count = static_cast<std::int64_t>(data.size());
  return Dataset::from_tensor_slices({Tensor::from({count}, data)});
}

TEST(DistributedDataset, OneDeviceYieldsAllAndStartsAgain) {
  OneDeviceStrategy strategy("cpu:0");
  DistributedDataset dataset = strategy.distribute_datasets_from_function(
      [](const InputContext&) { return Dataset::range(10); });
  for (int pass = 0; pass < 2; ++pass) {
    const auto steps = steps_of(dataset);
    ASSERT_EQ(steps.size(), 10u);
    for (std::int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(steps[static_cast<std::size_t>(i)], (Step{{i}}));
    }
  }
}

TEST(DistributedDataset, ConsecutiveElementsGoToConsecutiveReplicas) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  int calls = 0;
  DistributedDataset dataset =
      strategy.distribute_datasets_from_function([&calls](const InputContext& context) {
        ++calls;
        EXPECT_EQ(context.num_replicas_in_sync, 2);
        EXPECT_EQ(context.num_input_pipelines, 1);
        EXPECT_EQ(context.input_pipeline_id, 0);
        return Dataset::range(10);
      });
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(steps_of(dataset),
              (std::vector<Step>{{{0}, {1}}, {{2}, {3}}, {{4}, {5}}, {{6}, {7}}, {{8}, {9}}}));
  }
  EXPECT_EQ(calls, 1);
}

TEST(DistributedDataset, ZippedComponentsStayTogether) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const Dataset squares =
      Dataset::range(4).map([](const Element& e) { return Element({multiply(e[0], e[0])}); });
  DistributedDataset dataset = strategy.distribute_datasets_from_function([&](const InputContext&) {
    return Dataset::zip({Dataset::range(4), squares});
  });
  std::int64_t i = 0;
  for (const PerReplica<Batch>& batch : dataset) {
    for (const Batch& part : batch) {
      EXPECT_EQ(part.features().item_int(), i);
      EXPECT_EQ(part.labels().item_int(), i * i);
      ++i;
    }
  }
  EXPECT_EQ(i, 4);
}

TEST(DistributedDataset, DatasetByValueIsSplitByFunctionIsNot) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const Dataset batches = Dataset::range(100).batch(10);
  const auto split = steps_of(strategy.distribute_dataset(batches));
  ASSERT_EQ(split.size(), 10u);
  EXPECT_EQ(split[1], (Step{{10, 11, 12, 13, 14}, {15, 16, 17, 18, 19}}));
  const auto whole = steps_of(
      strategy.distribute_datasets_from_function([&](const InputContext&) { return batches; }));
  ASSERT_EQ(whole.size(), 5u);
  EXPECT_EQ(whole[0][1].front(), 10);
  EXPECT_EQ(whole[0][1].size(), 10u);
}

TEST(DistributedDataset, RowsPerReplicaAreCeiledAndGlobalCountIsKept) {
  MirroredStrategy strategy({.devices = "cpu:0-3"});
  DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(13).batch(10));
  EXPECT_EQ(dataset.global_batch_size(), 10);
  EXPECT_EQ(dataset.cardinality(), 2);
  std::vector<Step> steps;
  std::vector<Rows> global, first;
  for (const PerReplica<Batch>& batch : dataset) {
    Step step;
    Rows global_rows, first_rows;
    for (const Batch& part : batch) {
      step.push_back(values(part.features()));
      global_rows.push_back(part.global_rows());
      first_rows.push_back(part.element().first_row());
    }
    steps.push_back(step);
    global.push_back(global_rows);
    first.push_back(first_rows);
  }
  EXPECT_EQ(steps,
            (std::vector<Step>{{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9}}, {{10}, {11}, {12}, {}}}));
  EXPECT_EQ(global, (std::vector<Rows>{{10, 10, 10, 10}, {3, 3, 3, 3}}));
  EXPECT_EQ(first[0], (Rows{0, 3, 6, 9}));
}

TEST(DistributedDataset, WeightsGiveUnequalShares) {
  MirroredStrategy strategy({.devices = "cpu:0-1", .replica_weights = {3, 1}});
  EXPECT_EQ(steps_of(strategy.distribute_dataset(Dataset::range(8).batch(8))),
            (std::vector<Step>{{{0, 1, 2, 3, 4, 5}, {6, 7}}}));
  for (const auto& parts : strategy.distribute_dataset(Dataset::range(128).batch(128))) {
    EXPECT_EQ(parts[0].rows(), 96);
    EXPECT_EQ(parts[1].rows(), 32);
    EXPECT_EQ(parts[1].global_rows(), 128);
    EXPECT_EQ(parts[1].element().first_row(), 96);
  }
}

TEST(DistributedDataset, EachPieceIsOnTheDeviceOfItsReplica) {
  MirroredStrategy strategy({.devices = "cpu:2-3"});
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(Dataset::range(4).batch(4))) {
    EXPECT_EQ(batch[0].features().device(), Device::parse("cpu:2"));
    EXPECT_EQ(batch[1].features().device(), Device::parse("cpu:3"));
  }
}

// tf's testPrefetchToHostDataset: experimental_fetch_to_device=False.
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
      EXPECT_EQ(values(strategy.gather(doubled, 0)), (Rows{0, 2, 4, 6}));
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

TEST(DistributedDataset, RunsOverEveryBatch) {
  for (const char* devices : {"cpu:0", "cpu:0-1"}) {
    MirroredStrategy strategy({.devices = devices});
    DistributedDataset dataset = strategy.distribute_dataset(vector_dataset({5, 6, 7, 8}).batch(2));
    std::vector<Rows> flattened;
    for (const PerReplica<Batch>& batch : dataset) {
      PerReplica<Tensor> squares =
          strategy.run([](const Batch& part) { return square(part.features()); }, batch);
      flattened.push_back(values(strategy.gather(squares, 0)));
    }
    EXPECT_EQ(flattened, (std::vector<Rows>{{25, 36}, {49, 64}}));
  }
}

TEST(DistributedDataset, ProductOfMeans) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(vector_dataset({5, 6, 7, 8}).batch(2));
  double product = 2;
  for (const PerReplica<Batch>& batch : dataset) {
    const auto x = batch.map([](const Batch& part) { return part.features(); });
    product *= strategy.reduce(ReduceOp::kMean, x, 0).item();
  }
  EXPECT_DOUBLE_EQ(product, 82.5);
  // A second loop over the same dataset.
  const auto scope = strategy.scope();
  Variable a(Tensor(1.0f), {.aggregation = VariableAggregation::kOnlyFirstReplica});
  for (const PerReplica<Batch>& batch : dataset) {
    strategy.run([&a](const Batch&) { a.assign_add(1.0); }, batch);
  }
  EXPECT_EQ(a.value().item(), 3.0f);
}

TEST(DistributedDataset, PartialBatches) {
  for (const char* devices : {"cpu:0", "cpu:0-1", "cpu:0-2"}) {
    MirroredStrategy strategy({.devices = devices});
    std::vector<Rows> flattened;
    for (const auto& batch : strategy.distribute_dataset(vector_dataset({5, 6, 7}).batch(2))) {
      flattened.push_back(values(strategy.gather(
          strategy.run([](const Batch& part) { return square(part.features()); }, batch), 0)));
    }
    EXPECT_EQ(flattened, (std::vector<Rows>{{25, 36}, {49}}));
    const auto one = steps_of(
        strategy.distribute_dataset(vector_dataset({5, 6}).batch(1, {.drop_remainder = true})));
    ASSERT_EQ(one.size(), 2u);
    EXPECT_EQ(one[0][0], (Rows{5}));
    for (std::size_t r = 1; r < one[0].size(); ++r) EXPECT_TRUE(one[0][r].empty());
    for (const bool drop : {true, false}) {
      const auto two = steps_of(
          strategy.distribute_dataset(vector_dataset({5, 6}).batch(2, {.drop_remainder = drop})));
      ASSERT_EQ(two.size(), 1u);
      Rows of_all;
      for (const Rows& part : two[0]) of_all.insert(of_all.end(), part.begin(), part.end());
      EXPECT_EQ(of_all, (Rows{5, 6}));
    }
  }
}

TEST(DistributedDataset, MeanOverUnevenRows) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const Dataset ones = Dataset::from_tensor_slices({Tensor::ones({3, 2})}).batch(4);
  int steps = 0;
  for (const auto& batch : strategy.distribute_dataset(ones)) {
    const auto x = batch.map([](const Batch& part) { return part.features(); });
    EXPECT_EQ(values(strategy.reduce(ReduceOp::kMean, x, 0)), (Rows{1, 1}));
    ++steps;
  }
  EXPECT_EQ(steps, 1);
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

TEST(DistributedDataset, ByFunctionWithoutBatch) {
  MirroredStrategy strategy({.devices = "cpu:0-3"});
  const auto steps = steps_of(strategy.distribute_datasets_from_function([](const InputContext&) {
    return vector_dataset({5, 6, 7, 8});
  }));
  EXPECT_EQ(steps, (std::vector<Step>{{{5}, {6}, {7}, {8}}}));
}

TEST(DistributedDataset, MeanOfTheSecondStep) {
  for (const auto& [devices, expected] : {std::pair{"cpu:0", 10.0f}, std::pair{"cpu:0-1", 7.5f}}) {
    MirroredStrategy strategy({.devices = devices});
    DistributedDataset dataset =
        strategy.distribute_datasets_from_function([](const InputContext&) {
          return vector_dataset({2, 3}).repeat(5).map(
              [](const Element& e) { return Element({square(e[0]) + 1.0f}); });
        });
    DistributedDataset::Iterator it = dataset.begin();
    ++it;
    const auto x = (*it).map([](const Batch& part) { return part.features(); });
    EXPECT_FLOAT_EQ(strategy.reduce(ReduceOp::kMean, x).item(), expected);
  }
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
  thrown::expect_error(ErrorCode::kOutOfRange, {"DistributedDataset"}, [&] { (void)it->size(); });
  thrown::expect_error(ErrorCode::kOutOfRange, {"DistributedDataset"},
                       [] { (void)*DistributedDataset::Iterator(); });
}

TEST(DistributedDataset, RepeatedArrayInOrder) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  std::vector<float> x(12), y(6);
  for (std::size_t i = 0; i < 12; ++i) x[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < 6; ++i) y[i] = static_cast<float>(i);
  const Dataset data =
      Dataset::from_tensor_slices({Tensor::from({6, 2}, x), Tensor::from({6}, y)}).repeat(2);
  int steps = 0;
  for (const auto& batch : strategy.distribute_dataset(data.batch(6))) {
    const auto xs = batch.map([](const Batch& part) { return part.features(); });
    const auto ys = batch.map([](const Batch& part) { return part.labels(); });
    EXPECT_EQ(strategy.gather(xs, 0).to_doubles(), std::vector<double>(x.begin(), x.end()));
    EXPECT_EQ(strategy.gather(ys, 0).to_doubles(), std::vector<double>(y.begin(), y.end()));
    ++steps;
  }
  EXPECT_EQ(steps, 2);
}

TEST(DistributedDataset, MatchesSplitsOfTheDocumentation) {
  MirroredStrategy two({.devices = "cpu:0-1"});
  EXPECT_EQ(steps_of(two.distribute_dataset(Dataset::range(10).batch(10))),
            (std::vector<Step>{{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}}}));
  EXPECT_EQ(steps_of(two.distribute_dataset(Dataset::range(6).batch(4))),
            (std::vector<Step>{{{0, 1}, {2, 3}}, {{4}, {5}}}));
  MirroredStrategy five({.devices = "cpu:0-4"});
  EXPECT_EQ(steps_of(five.distribute_dataset(Dataset::range(4).batch(4))),
            (std::vector<Step>{{{0}, {1}, {2}, {3}, {}}}));
  MirroredStrategy three({.devices = "cpu:0-2"});
  EXPECT_EQ(steps_of(three.distribute_dataset(Dataset::range(8).batch(4))),
            (std::vector<Step>{{{0, 1}, {2, 3}, {}}, {{4, 5}, {6, 7}, {}}}));
}

void expect_refused(const Dataset& dataset) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  for (const InputOptions& options :
       {InputOptions{}, InputOptions{.sharding_rule = ShardingRule::kTensorFlow}}) {
    thrown::expect_error(ErrorCode::kInvalidArgument, {"not batched", "batch(global_batch_size)"},
                         [&] { (void)strategy.distribute_dataset(dataset, options); });
  }
}

// Of scalars and of vectors, which could be cut; nothing is read.
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

// Whatever may be batches is taken for them.
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
    EXPECT_EQ(steps_of(strategy.distribute_dataset(dataset)),
              (std::vector<Step>{{{0, 1}, {2, 3}}}));
  }
}

// Where it is not known before, scalars are found when they come.
TEST(DistributedDataset, ScalarsBehindAMapAreRefusedWhenTheyCome) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(
      Dataset::range(4).map([](const Element& element) { return element; }));
  thrown::expect_error(ErrorCode::kInvalidArgument, {"not batched", "batch(global_batch_size)"},
                       [&] { (void)dataset.begin(); });
}

TEST(DistributedDataset, PositionGoesOnInTheMiddleOfAnEpoch) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const Dataset data = Dataset::range(20).shuffle(20, 7).batch(4);
  DistributedDataset straight = strategy.distribute_dataset(data);
  std::vector<Step> expected;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const Step& step : steps_of(straight)) expected.push_back(step);
  }
  for (std::size_t stop : {0u, 1u, 4u, 5u, 7u, 10u}) {
    DistributedDataset first = strategy.distribute_dataset(data);
    std::vector<Step> seen;
    while (seen.size() < stop) {
      for (const PerReplica<Batch>& batch : first) {
        Step step;
        for (const Batch& part : batch) step.push_back(values(part.features()));
        seen.push_back(step);
        if (seen.size() == stop) break;
      }
    }
    const Json position = Json::parse(first.position().dump());
    DistributedDataset second = strategy.distribute_dataset(data);
    second.restore(position);
    while (seen.size() < expected.size()) {
      for (const Step& step : steps_of(second)) seen.push_back(step);
    }
    EXPECT_EQ(seen, expected) << "stopped after " << stop;
  }
}

TEST(DistributedDataset, PositionOfAnotherGlobalBatchIsRefusedWithinAnEpoch) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset small = strategy.distribute_dataset(Dataset::range(20).batch(4));
  DistributedDataset large = strategy.distribute_dataset(Dataset::range(20).batch(8));
  large.restore(small.position());
  EXPECT_EQ(steps_of(large).size(), 3u) << "between epochs";
  auto iterator = small.begin();
  for (int i = 0; i < 2; ++i) ++iterator;
  thrown::expect_error(ErrorCode::kFailedPrecondition,
                       {"3 global batches of 4 rows", "got 8", "batch size of before"},
                       [&] { large.restore(small.position()); });
}

TEST(DistributedDataset, AnOlderIteratorEnds) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(8).batch(2));
  DistributedDataset::Iterator old = dataset.begin();
  DistributedDataset::Iterator newest = dataset.begin();
  EXPECT_THROW(++old, Error);
  EXPECT_NO_THROW(++newest);
}

}  // namespace distributed_dataset_test
}  // namespace tutti
