// A strategy of two parameter servers in this process, whose steps count, for tests of
// coordinators.
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
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::testing {

/// Every count() of a closure adds 1 to a counter on each of the servers, in the closure's name.
class CountingStrategy final : public CoordinatedStrategy {
 public:
  explicit CountingStrategy(int num_workers) : num_workers_(num_workers) {
    for (internal::VariableStore* server : {&first_, &second_}) {
      internal::OperationBatch batch;
      batch.stream = {internal::UpdateStream::Kind::kClient, 1, 0};
      batch.operations = {internal::CreateShard{spec(), Tensor::scalar(0, DType::kInt64)}};
      server->start(std::move(batch))->wait(TimePoint::max());
    }
  }

  int num_workers() const override { return num_workers_; }
  void run_closure(const std::function<void()>& body) override {
    ordinal() = 0;
    body();
  }

  /// Called by steps.
  void count() {
    ++num_calls;  // also of one that is refused, for its closure has finished meanwhile
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
  /// Of a server.
  std::int64_t counted(int server = 0) {
    internal::OperationBatch batch;
    batch.stream = {internal::UpdateStream::Kind::kClient, 1, 0};
    batch.operations = {internal::ReadShard{spec().id()}};
    auto& store = server == 0 ? first_ : second_;
    return store.start(std::move(batch))->wait(TimePoint::max()).at(0).value->item_int();
  }
  void expect_counted(std::int64_t expected) {
    EXPECT_EQ(counted(0), expected);
    EXPECT_EQ(counted(1), expected);
  }

  std::atomic<int> num_calls{0};  // of count(), repeated ones too
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

/// How the queue is limited, and when workers begin.
struct CoordinatorKind {
  std::size_t most_queued = 4096;
  Duration start_delay = Duration::zero();
  std::string name = {};
};

inline ClusterCoordinatorOptions options_of(const CoordinatorKind& kind) {
  ClusterCoordinatorOptions options;
  options.most_queued = kind.most_queued;
  options.start_delay = kind.start_delay;
  return options;
}

inline std::vector<CoordinatorKind> all_coordinator_kinds() {
  return {{4096, Duration::zero(), "Plain"},
          {2, Duration::zero(), "TwoEntries"},
          {2, std::chrono::milliseconds(3), "StartDelay"}};
}

/// A step that waits until it is let go, whoever cancels it: what a thread of a killed worker is.
class Gate {
 public:
  void pass() {
    ++num_inside;
    open_.wait_until(TimePoint::max());
  }
  void open() { open_.set(); }
  void expect_inside(int count) {
    const TimePoint deadline = deadline_after(Clock::system().now(), std::chrono::seconds(60));
    while (num_inside < count && Clock::system().now() < deadline) {
      Clock::system().sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(num_inside, count);
  }
  std::atomic<int> num_inside{0};

 private:
  Event open_;
};

}  // namespace tutti::testing
