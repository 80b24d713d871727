// Servers for a server's own program, in which variables have their initial values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// VariableService for a process of job ps, which runs the program up to
/// ClusterCoordinator::start(), where nothing may be changed. Values are computed when they are
/// read, and only their descriptions are kept (and tensors that the program provided). Other
/// operations are refused with kFailedPrecondition. Thread-safe.
class FirstValues final : public VariableService {
 public:
  explicit FirstValues(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;

 private:
  OperationAnswer answer(const Operation& operation);
  CreateShard find(ShardId shard) const;

  const std::string name_;
  mutable Mutex mutex_;
  std::map<ShardId, CreateShard> made_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
