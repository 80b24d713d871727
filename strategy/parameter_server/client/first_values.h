// The servers as a server's own program sees them: variables have the values they are made with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A process of job ps runs the program up to ClusterCoordinator::start(), where nothing may be
/// changed: so values are made when somebody reads them, and nothing is kept but what describes
/// them (and tensors that the program gave itself). Other operations are refused with
/// kFailedPrecondition. Threads: any.
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
