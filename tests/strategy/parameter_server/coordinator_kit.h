// Helpers for tests of coordinators and jobs: a strategy that counts steps on two servers in this
// process, expected closure errors, and clusters on free ports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tools/launch/job_plan.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::testing {

/// Strategy whose count() adds 1 to a counter on each server as a change of the current closure.
class CountingStrategy final : public CoordinatedStrategy {
 public:
  explicit CountingStrategy(int num_workers) : num_workers_(num_workers) {
    for (internal::VariableStore* server : {&first_, &second_}) {
      store_tests::Client(*server, 1)
          .call({internal::CreateShard{spec(), Tensor::scalar(0, DType::kInt64)}});
    }
  }

  int num_workers() const override { return num_workers_; }
  void run_closure(const std::function<void()>& body) override {
    ordinal() = 0;
    body();
  }

  /// Adds 1 to the counter on each server. Must be called inside a step.
  void count() {
    ++num_calls;  // includes calls that a server refuses because the closure has finished
    const ClosureContext& closure = *ClosureContext::current();
    const std::uint64_t number = ordinal()++;
    for (internal::VariableStore* server : {&first_, &second_}) {
      if (is_second_gone && server == &second_) {
        throw OriginError(ErrorOrigin::kServer, ErrorCode::kUnavailable, "ps 1: does not answer");
      }
      internal::OperationBatch batch;
      batch.stream = {internal::UpdateStream::Kind::kClosure, closure.id(), 0};
      batch.first_ordinal = number;
      batch.finished_below = closure.finished_below();
      batch.operations = {
          internal::AssignShard{spec().id(), AssignOp::kAdd, Tensor::scalar(1, DType::kInt64)}};
      server->start(std::move(batch))->wait(TimePoint::max());
    }
  }
  /// Returns the value of the counter variable on a server.
  std::int64_t counted(int server = 0) {
    return store_tests::Client(server == 0 ? first_ : second_, 1).read(spec().id()).item_int();
  }
  void expect_counted(std::int64_t expected) {
    EXPECT_EQ(counted(0), expected);
    EXPECT_EQ(counted(1), expected);
  }

  std::atomic<int> num_calls{0};  // calls to count(), including repetitions
  std::atomic<bool> is_second_gone{false};

 private:
  static internal::ShardSpec spec() { return {"counter", DType::kInt64, {}}; }
  static std::uint64_t& ordinal() {
    thread_local std::uint64_t ordinal = 0;
    return ordinal;
  }

  const int num_workers_;
  internal::VariableStore first_{"ps 0"}, second_{"ps 1"};
};

/// Returns a cluster with the given number of tasks per job, each on a free port of this host.
inline ClusterSpec local_cluster(const std::map<std::string, int>& jobs) {
  int total = 0;
  for (const auto& [job, count] : jobs) total += count;
  std::vector<int> ports = launch::free_ports(total);
  ClusterSpec::Jobs tasks;
  for (const auto& [job, count] : jobs) {
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i, ports.pop_back()) {
      addresses.push_back(concat("127.0.0.1:", ports.back()));
    }
    tasks.emplace(job, addresses);
  }
  return ClusterSpec(std::move(tasks));
}

/// Expects `body` to throw a ClosureError with this origin and code and with a message that
/// contains `part`.
template <class Body>
void expect_closure_error(ErrorOrigin origin, ErrorCode code, const std::string& part,
                          const Body& body) {
  try {
    body();
    ADD_FAILURE() << "expected an error with '" << part << "'";
  } catch (const ClosureError& error) {
    EXPECT_EQ(error.origin(), origin) << error.message();
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_THAT(error.message(), ::testing::HasSubstr(part));
  }
}

/// Polls `is_done` for up to a minute and expects it to become true.
template <class IsDone>
void expect_soon(const IsDone& is_done) {
  const TimePoint deadline = store_tests::soon();
  while (!is_done() && Clock::system().now() < deadline) {
    Clock::system().sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_done());
}

/// Gate that blocks steps until it is opened. Cancelled steps stay blocked too, like threads of a
/// killed worker.
class Gate {
 public:
  void pass() {
    ++num_inside;
    open_.wait_until(TimePoint::max());
  }
  void open() { open_.set(); }
  void expect_inside(int count) {
    expect_soon([&] { return num_inside >= count; });
  }
  std::atomic<int> num_inside{0};

 private:
  Event open_;
};

/// Defines the steps "count", "double", "fail", "long" and "endless" in a registry or a
/// coordinator.
template <class Registry>
void define_steps(Registry& registry, CountingStrategy& strategy, Gate& gate) {
  registry.define("count", [&strategy] { strategy.count(); });
  registry.define("double", [](const Tensor& x) { return std::vector<Tensor>{x, x}; });
  registry.define("fail", [] { fail(ErrorCode::kOutOfRange, "end of data"); });
  registry.define("long", [&] {
    gate.pass();
    strategy.count();
  });
  registry.define("endless", [&gate] {
    ++gate.num_inside;
    while (!ClosureContext::current()->cancelled()) {
      Clock::system().sleep_for(std::chrono::milliseconds(1));
    }
    ClosureContext::current()->throw_if_cancelled();
  });
}

}  // namespace tutti::testing
