// Serves a variable store to other tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// Applies a batch, which was the request of `call`, and answers it. Its owner is the caller.
void serve(VariableStore& store, std::shared_ptr<RpcCall> call, OperationBatch batch);

/// Decodes batches, answers them, and tells the store of clients that left. Calls that come twice
/// are the store's business. Threads: as RpcHandler.
class VariableHandler final : public RpcHandler {
 public:
  /// `store` outlives the handler and the server that calls it.
  explicit VariableHandler(VariableStore& store) : store_(store) {}

  void take(std::shared_ptr<RpcCall> call) override {
    OperationBatch batch = decode_batch(call->request());
    serve(store_, std::move(call), std::move(batch));
  }
  void client_left(const RpcPeer& peer) override { store_.owner_left(peer.client); }

 private:
  VariableStore& store_;
};

}  // namespace tutti::internal
