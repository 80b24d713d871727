// Stand-in for the parameter servers in the program that runs in a server process: each variable
// keeps its initial value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// VariableService for a process of job ps. Such a process runs the program only up to
/// ClusterCoordinator::start() and must not change any value before that. The service stores
/// descriptions of values, and tensors that the program provided; it computes values when they are
/// read. It refuses other operations with kFailedPrecondition. Thread-safe.
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
