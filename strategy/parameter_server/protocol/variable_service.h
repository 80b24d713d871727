// Interface of a parameter server for its clients, in this process or over a connection.
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

/// Replies to a batch, which may not have arrived yet.
class PendingAnswers {
 public:
  virtual ~PendingAnswers() = default;
  virtual bool is_ready() const = 0;
  /// Returns the replies. Throws the server's error, kDeadlineExceeded, kUnavailable or kAborted;
  /// each message begins with the server's name.
  virtual std::vector<OperationAnswer> wait(TimePoint deadline) = 0;
};

/// Interface of a parameter server, which applies a caller's batches in the order of the calls to
/// start(). Thread-safe.
class VariableService {
 public:
  virtual ~VariableService() = default;
  /// Returns the name in error messages, such as "ps 1 (127.0.0.1:4711)".
  virtual std::string name() const = 0;
  virtual std::shared_ptr<PendingAnswers> start(OperationBatch batch) = 0;
};

/// Replies to a batch, or an error.
struct BatchResult {
  std::vector<OperationAnswer> answers = {};
  std::optional<Error> error = {};
};

/// Receives the result of a batch. Called once, on any thread.
using BatchDone = std::function<void(BatchResult)>;

/// Replies for which a thread of this process waits. Thread-safe.
class AwaitedAnswers final : public PendingAnswers {
 public:
  /// `server`: prefix of error messages.
  explicit AwaitedAnswers(std::string server) : server_(std::move(server)) {}
  void set_result(BatchResult result);
  bool is_ready() const override;
  std::vector<OperationAnswer> wait(TimePoint deadline) override;

 private:
  const std::string server_;
  mutable Mutex mutex_;
  CondVar given_;
  std::optional<BatchResult> result_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
