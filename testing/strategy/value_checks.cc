// Checks of what a strategy does with values outside replicas: reductions and input.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/expected.h"
#include "testing/strategy/expect.h"

namespace tutti::conformance {
namespace {

/// r + 1 rows of the number r in replica r.
PerReplica<Tensor> uneven(Strategy& strategy, DType dtype) {
  return strategy.run([dtype] {
    const int r = ReplicaContext::current().replica_id();
    return Tensor::full({r + 1}, r, dtype);
  });
}

void check_reduce(const StrategySubject&, Strategy& strategy) {
  const auto n = static_cast<int>(strategy.replica_devices().size());
  double sum = 0, rows = 0;
  for (int r = 0; r < n; ++r) sum += r * (r + 1), rows += r + 1;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    const PerReplica<Tensor> values = uneven(strategy, dtype);
    const std::string of = concat(" of ", dtype, " [0], [1, 1], [2, 2, 2], ... over axis 0");
    expect_equal("reduce(SUM)" + of, numbers(strategy.reduce(ReduceOp::kSum, values, 0)), {sum});
    const double mean = strategy.reduce(ReduceOp::kMean, values, 0).item_double();
    expect(std::abs(mean - sum / rows) < 1e-6,
           concat("reduce(MEAN)", of, ": expected the mean of all rows, ", sum / rows, ", got ",
                  mean));
  }
  const auto thirds = strategy.run([] {
    return Tensor::scalar(1.0 / (3 * ReplicaContext::current().replica_id() + 1), DType::kFloat32);
  });
  std::vector<float> values;
  for (int r = 0; r < n; ++r) values.push_back(1.0f / static_cast<float>(3 * r + 1));
  const std::string wrong =
      wrong_combination<float>(ReduceOp::kSum, Determinism::kCanonical, values,
                               strategy.reduce(ReduceOp::kSum, thirds).item());
  expect(wrong.empty(), "reduce(SUM), always along the canonical tree: " + wrong);
  if (n == 1) return;
  expect_error("reduce(SUM) of a value that is not distributed", ErrorCode::kInvalidArgument,
               {"not distributed"}, [&] { strategy.reduce(ReduceOp::kSum, Tensor(1.0f)); });
}

void check_gather(const StrategySubject&, Strategy& strategy) {
  const std::size_t n = strategy.replica_devices().size();
  Numbers expected;
  for (std::size_t r = 0; r < n; ++r) {
    expected.insert(expected.end(), r + 1, static_cast<double>(r));
  }
  expect_equal("gather() of r + 1 rows each, in replica order",
               numbers(strategy.gather(uneven(strategy, DType::kFloat32), 0)), expected);
}

void check_copies(const StrategySubject&, Strategy& strategy) {
  const auto devices = strategy.worker_devices();
  const auto n = static_cast<int>(strategy.replica_devices().size());
  const auto ids =
      strategy.run([] { return Tensor::full({2}, ReplicaContext::current().replica_id()); });
  const PerReplica<Tensor> sums = strategy.reduce_to(ReduceOp::kSum, ids, devices);
  expect_equal("reduce_to(SUM) on each worker device", numbers(sums),
               copies(n * (n - 1) / 2.0, 2 * devices.size()));
  const PerReplica<Tensor> sevens = strategy.broadcast_to(Tensor(7.0f), devices);
  expect_equal("broadcast_to() on each worker device", numbers(sevens), copies(7, devices.size()));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    expect_equal("reduce_to(): device", concat(sums[i].device()), concat(devices[i]));
    expect_equal("broadcast_to(): device", concat(sevens[i].device()), concat(devices[i]));
  }
}

/// One pass; each batch is where its replica computes, and knows how large the global batch is.
Numbers elements_of(Strategy& strategy, DistributedDataset& dataset, std::int64_t& num_steps) {
  const auto devices = strategy.replica_devices();
  Numbers all;
  num_steps = 0;
  for (const PerReplica<Batch>& step : dataset) {
    ++num_steps;
    expect_equal("distribute_dataset(): batches of a step", step.size(), devices.size());
    std::int64_t rows = 0;
    for (std::size_t r = 0; r < step.size(); ++r) {
      const Tensor& features = step[r].features();
      const std::string who = concat("distribute_dataset(): replica ", r, ": ");
      expect_equal(who + "device of its batch", concat(features.device()), concat(devices[r]));
      rows += step[r].rows();
      for (const double value : features.to_doubles()) all.push_back(value);
    }
    for (const Batch& batch : step) {
      expect_equal("distribute_dataset(): rows of the global batch", batch.global_rows(), rows);
    }
  }
  return all;
}

void check_input(const StrategySubject&, Strategy& strategy) {
  const auto n = static_cast<std::int64_t>(strategy.replica_devices().size());
  const std::int64_t count = 7 * n + 1;  // the last batch is a row
  DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(count).batch(2 * n));
  Numbers expected;
  for (std::int64_t i = 0; i < count; ++i) expected.push_back(static_cast<double>(i));
  for (const char* const pass : {"first", "second"}) {
    std::int64_t num_steps = 0;
    const Numbers got = elements_of(strategy, dataset, num_steps);
    expect_equal(concat("distribute_dataset(), ", pass, " pass: every element once, in order"), got,
                 expected);
    expect_equal("distribute_dataset(): steps, one for each global batch", num_steps,
                 (count + 2 * n - 1) / (2 * n));
  }
  expect_error("distribute_dataset() without batch()", ErrorCode::kInvalidArgument, {"batch"}, [&] {
    DistributedDataset single = strategy.distribute_dataset(Dataset::range(4));
    for (const PerReplica<Batch>& step : single) static_cast<void>(step);
  });
}

void check_input_from_function(const StrategySubject&, Strategy& strategy) {
  const auto n = static_cast<std::int64_t>(strategy.replica_devices().size());
  int calls = 0;
  DistributedDataset dataset =
      strategy.distribute_datasets_from_function([&](const InputContext& context) {
        ++calls;
        expect(context.num_replicas_in_sync == n && context.num_input_pipelines == 1,
               "InputContext: expected all replicas and one pipeline");
        return Dataset::range(4 * n).batch(2);
      });
  expect_equal("distribute_datasets_from_function(): calls of the function", calls, 1);
  std::int64_t first = 0;
  for (const PerReplica<Batch>& step : dataset) {
    for (const Batch& batch : step) {
      expect_equal("distribute_datasets_from_function(): consecutive batches, replica by replica",
                   numbers(batch.features()),
                   {static_cast<double>(first), static_cast<double>(first + 1)});
      first += 2;
    }
  }
  expect_equal("distribute_datasets_from_function(): elements", first, 4 * n);
}

}  // namespace

std::vector<StrategyCheck> value_checks() {
  return {{"reduce", check_reduce},
          {"gather", check_gather},
          {"copies", check_copies},
          {"input", check_input},
          {"input_from_function", check_input_from_function}};
}

}  // namespace tutti::conformance
