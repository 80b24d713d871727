// Helpers for tests of distributed input: workers as threads, and the rows of each step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/data/records.h"
#include "tutti/strategy/strategies.h"

namespace tutti::input_tests {
using Rows = std::vector<std::int64_t>;
using Step = std::vector<Rows>;  // rows of each replica
using Steps = std::vector<Step>;

struct Workers {
  int count = 1;
  int replicas = 1;  // number of replicas on each worker
  InputOptions options = {};
  InputCut cut = InputCut::kSplit;
  std::vector<double> weights = {};
};

inline InputPlan plan_of(const Workers& workers, int worker) {
  InputPlan plan{.replica_devices = parse_devices(concat("cpu:0-", workers.replicas - 1)),
                 .weights = workers.weights,
                 .cut = workers.cut,
                 .options = workers.options,
                 .num_replicas_in_sync = workers.count * workers.replicas,
                 .first_replica = worker * workers.replicas,
                 .num_workers = workers.count,
                 .worker = worker};
  return plan;
}

// Function that each worker runs with its DistributedDataset.
using Body = std::function<void(int worker, DistributedDataset dataset)>;
using MakeDataset = std::function<Dataset(int worker)>;

inline void on_workers(const Workers& workers, const MakeDataset& make, const Body& body) {
  const auto communicators =
      in_process_communicators(workers.count, {.timeout = std::chrono::seconds(60)});
  const auto errors = errors_of_ranks(workers.count, [&](int worker) {
    Communicator& own = *communicators[static_cast<std::size_t>(worker)];
    InputPlan plan = plan_of(workers, worker);
    plan.rows_of_workers = [&](std::int64_t rows) {
      Rows all(communicators.size());
      own.all_gather(std::span(&rows, 1), std::span(all));
      return all;
    };
    body(worker, make_distributed_dataset(make(worker), std::move(plan)));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

inline Rows rows_of(const Tensor& tensor) {
  Rows rows;
  for (const double value : tensor.to_doubles()) rows.push_back(static_cast<std::int64_t>(value));
  return rows;
}

inline Step values_of(const PerReplica<Batch>& batch) {
  Step step;
  for (const Batch& part : batch) step.push_back(rows_of(part.features()));
  return step;
}

inline Steps rest_of_pass(DistributedDataset& dataset) {
  Steps steps;
  for (const PerReplica<Batch>& batch : dataset) steps.push_back(values_of(batch));
  return steps;
}

// Returns each worker's steps in one pass over its dataset.
inline std::vector<Steps> passes_of(const Workers& workers, const MakeDataset& make) {
  std::vector<Steps> passes(static_cast<std::size_t>(workers.count));
  on_workers(workers, make, [&](int worker, DistributedDataset dataset) {
    passes[static_cast<std::size_t>(worker)] = rest_of_pass(dataset);
  });
  return passes;
}
inline std::vector<Steps> passes_of(const Workers& workers, const Dataset& dataset) {
  return passes_of(workers, [&](int) { return dataset; });
}

// Merges the workers' steps into steps of all replicas. Expects the same number of steps on every
// worker.
inline Steps all_replicas(const std::vector<Steps>& passes) {
  Steps steps = passes.front();
  for (std::size_t w = 1; w < passes.size(); ++w) {
    EXPECT_EQ(passes[w].size(), steps.size()) << "worker " << w;
    for (std::size_t s = 0; s < std::min(steps.size(), passes[w].size()); ++s) {
      steps[s].insert(steps[s].end(), passes[w][s].begin(), passes[w][s].end());
    }
  }
  return steps;
}

inline Rows sorted_rows(const Steps& steps) {
  Rows all;
  for (const Step& step : steps) {
    for (const Rows& rows : step) all.insert(all.end(), rows.begin(), rows.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

inline Rows numbers_below(std::int64_t count) {
  Rows numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Writes one TFRecord file with n records for each n in `sizes`. Across all files, the records are
// 0, 1, 2, ...
inline std::vector<std::string> files_of(const std::vector<int>& sizes) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      concat("tutti_input_", test->name(), "_", join(sizes));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  int number = 0;
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    TFRecordWriter writer((folder / concat("part-", f)).string());
    for (int r = 0; r < sizes[f]; ++r) writer.write(std::to_string(number++));
    writer.close();
  }
  return list_files((folder / "part-*").string());
}

inline Dataset numbers_in(const std::vector<std::string>& paths) {
  return tfrecord_dataset(paths).map([](const Element& record) {
    return Element(
        {Tensor::from<std::int64_t>({}, {std::stoll(std::string(bytes_of(record[0])))})});
  });
}

inline InputOptions named(AutoShardPolicy policy) { return {.auto_shard_policy = policy}; }

inline Steps steps_of_one_process(int replicas, const Dataset& dataset) {
  MirroredStrategy strategy({.devices = concat("cpu:0-", replicas - 1)});
  DistributedDataset distributed = strategy.distribute_dataset(dataset);
  return rest_of_pass(distributed);
}

}  // namespace tutti::input_tests
