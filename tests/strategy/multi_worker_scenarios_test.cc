// What tf's tests of several workers say, where it is no failure of a process: two workers, each a
// thread with a strategy of its own.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

namespace tutti::strategy_tests {
namespace {
using TwoWorkersBody = std::function<void(MultiWorkerMirroredStrategy&)>;

/// What each of two workers threw; "" for none.
std::vector<std::string> errors_of_two_workers(const TwoWorkersBody& body,
                                               Duration timeout = std::chrono::seconds(60)) {
  auto communicators = in_process_communicators(2, {.timeout = timeout});
  return errors_of_ranks(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]),
                                         on_cpus(1));
    body(strategy);
  });
}

// docs/deviations.md: tf counts such a value once per worker.
TEST(MultiWorkerScenarios, SumOfAnUndistributedValueIsRefused) {
  const auto errors = errors_of_two_workers([](MultiWorkerMirroredStrategy& strategy) {
    EXPECT_EQ(strategy.reduce(ReduceOp::kMean, num(1.0)).item(), 1.0f);
    strategy.reduce(ReduceOp::kSum, num(1.0));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("not distributed"));
  }
}

/// Worker 0 makes a call that worker 1 never makes: what it threw.
ErrorCode code_of_call_alone(const TwoWorkersBody& call) {
  ErrorCode code = ErrorCode::kOk;
  Mutex mutex;
  CondVar changed;
  bool is_done = false;
  const auto errors = errors_of_two_workers(
      [&](MultiWorkerMirroredStrategy& strategy) {
        if (strategy.worker() == 1) {  // here, but elsewhere
          MutexLock lock(mutex);
          changed.wait_for(mutex, std::chrono::seconds(90), [&] { return is_done; });
          return;
        }
        try {
          call(strategy);
        } catch (const Error& error) {
          code = error.code();
        }
        MutexLock lock(mutex);
        is_done = true;
        changed.notify_all();
      },
      std::chrono::seconds(3));
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  return code;
}

IndexedSlices one_row() { return {vec({1.0f}), Tensor::from<std::int64_t>({1}, {0}), Shape{5}}; }

TEST(MultiWorkerScenarios, CallMissingOnTheOtherWorkerTimesOut) {
  const auto value = [] { return PerReplica<Tensor>({num(1.0)}); };
  const auto all_reduce = [](std::size_t count) {
    return [count](MultiWorkerMirroredStrategy& strategy) {
      strategy.run([&] {
        const std::vector<Gradient> sparse(count, Gradient(one_row()));
        ReplicaContext::current().all_reduce(ReduceOp::kSum, sparse);
      });
    };
  };
  const TwoWorkersBody calls[] = {
      [&](auto& strategy) { strategy.reduce(ReduceOp::kSum, value()); },
      [&](auto& strategy) {
        const std::pair<PerReplica<Tensor>, std::vector<Device>> pairs[] = {{value(), {Device{}}},
                                                                            {value(), {Device{}}}};
        strategy.batch_reduce_to(ReduceOp::kSum, pairs);
      },
      all_reduce(1), all_reduce(2)};
  const auto errors = errors_of_ranks(4, [&](int call) {  // at once: each waits for its timeout
    EXPECT_EQ(code_of_call_alone(calls[call]), ErrorCode::kDeadlineExceeded) << "call " << call;
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

}  // namespace
}  // namespace tutti::strategy_tests
