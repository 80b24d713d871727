// A parameter server in another process, over a connection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/protocol/variable_service.h"

namespace tutti::internal {

/// Batches as calls. Tensors of a batch are sent from where they lie; they are kept until the
/// answer is there. What cannot be sent is thrown by wait(). Of one batch's answers one thread
/// waits at a time. Threads: any.
class RemoteService final : public VariableService {
 public:
  explicit RemoteService(std::shared_ptr<RpcClient> client) : client_(std::move(client)) {}

  std::string name() const override { return client_->server_name(); }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;
  RpcClient& client() { return *client_; }

 private:
  const std::shared_ptr<RpcClient> client_;
};

}  // namespace tutti::internal
