// Helpers that run several workers in one process, each as a thread with its own strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

namespace tutti::strategy_tests {

/// Connection between workers: shared memory, or messages as between processes.
enum class Between { kMemory, kMessages };

inline std::vector<LocalStrategyOptions> workers_with(const std::vector<int>& replicas) {
  std::vector<LocalStrategyOptions> options;
  for (const int count : replicas) {
    options.push_back(on_cpus(count));
  }
  return options;
}

using WorkerBody = std::function<void(MultiWorkerMirroredStrategy&)>;

inline std::vector<std::unique_ptr<Communicator>> communicators_of(
    int workers, Between between, const CommunicatorOptions& options) {
  if (between == Between::kMemory) return in_process_communicators(workers, options);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (auto& transport : in_process_transports(workers, false)) {
    communicators.push_back(make_communicator(std::move(transport), options));
  }
  return communicators;
}

/// Runs `body` in each worker; returns each worker's error, or "".
inline std::vector<std::string> run_workers(const std::vector<LocalStrategyOptions>& options,
                                            const WorkerBody& body,
                                            Between between = Between::kMemory,
                                            const CommunicatorOptions& communication = {}) {
  const auto workers = static_cast<int>(options.size());
  auto communicators = communicators_of(workers, between, communication);
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    MultiWorkerMirroredStrategy strategy(std::move(communicators[w]), options[w]);
    body(strategy);
  });
}

inline void expect_no_error(const std::vector<std::string>& errors) {
  for (std::size_t w = 0; w < errors.size(); ++w) EXPECT_EQ(errors[w], "") << "worker " << w;
}

/// Runs `body` in one worker per entry of `replicas`; the entry is the worker's number of replicas.
/// The workers exchange messages; no worker may throw.
inline void on_workers(const std::vector<int>& replicas, const WorkerBody& body) {
  expect_no_error(run_workers(workers_with(replicas), body, Between::kMessages));
}

/// Runs `body` in each worker and returns the results; no worker may throw.
template <class Body>
auto results_of_workers(const std::vector<LocalStrategyOptions>& options, const Body& body,
                        Between between = Between::kMemory,
                        const CommunicatorOptions& communication = {}) {
  std::vector<std::invoke_result_t<Body, MultiWorkerMirroredStrategy&>> results(options.size());
  expect_no_error(run_workers(
      options,
      [&](MultiWorkerMirroredStrategy& strategy) {
        results[static_cast<std::size_t>(strategy.worker())] = body(strategy);
      },
      between, communication));
  return results;
}

/// Same as run_workers(), but variables are sharded over the replicas of all workers; worker w has
/// replicas[w] replicas.
inline std::vector<std::string> run_sharded(
    const std::vector<int>& replicas, int stage,
    const std::function<void(FullyShardedStrategy&)>& body) {
  const auto workers = static_cast<int>(replicas.size());
  auto communicators = communicators_of(workers, Between::kMessages, {});
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    FullyShardedStrategy strategy(
        std::move(communicators[w]),
        {.local = on_cpus(replicas[w]), .stage = stage, .min_shard_bytes = 0});
    body(strategy);
  });
}

}  // namespace tutti::strategy_tests
