// A parameter server as its clients see it, in this process or over a connection; and answers to a
// batch while they are collected.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Answers on their way.
class PendingAnswers {
 public:
  virtual ~PendingAnswers() = default;
  virtual bool is_ready() const = 0;
  /// Throws what the server answered, with its name in front; kDeadlineExceeded, kUnavailable and
  /// kAborted naming the server.
  virtual std::vector<OperationAnswer> wait(TimePoint deadline) = 0;
};

/// Batches of one caller are applied in the order of start(). Threads: any.
class VariableService {
 public:
  virtual ~VariableService() = default;
  /// "ps 1 (127.0.0.1:4711)".
  virtual std::string name() const = 0;
  virtual std::shared_ptr<PendingAnswers> start(OperationBatch batch) = 0;
};

/// The answers, or why there are none.
struct BatchResult {
  std::vector<OperationAnswer> answers = {};
  std::optional<Error> error = {};
};

/// Calls `done` once: when all answers are there and the batch was let go, or at the first error.
/// Threads: any; `done` runs in the thread that gave the last answer, which holds no lock.
class BatchAnswers {
 public:
  using Done = std::function<void(BatchResult)>;
  BatchAnswers(std::size_t num_operations, Done done);

  void set(std::size_t index, OperationAnswer answer);
  void fail(const Error& error);
  /// The batch itself is done; reads of it may still wait.
  void let_go();

 private:
  Mutex mutex_;
  std::vector<OperationAnswer> answers_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_missing_ TUTTI_GUARDED_BY(mutex_);  // and one until let_go()
  Done done_ TUTTI_GUARDED_BY(mutex_);                // null after its call
};

/// Answers that a thread of this process waits for. Threads: any.
class AwaitedAnswers final : public PendingAnswers {
 public:
  /// `server` stands in front of errors.
  explicit AwaitedAnswers(std::string server) : server_(std::move(server)) {}
  void give(BatchResult result);
  bool is_ready() const override;
  std::vector<OperationAnswer> wait(TimePoint deadline) override;

 private:
  const std::string server_;
  mutable Mutex mutex_;
  CondVar given_;
  std::optional<BatchResult> result_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
