// A parameter server as its clients see it: in this process, or over a connection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"

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

}  // namespace tutti::internal
