// Serves a variable store to other tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// Decodes batches, answers them, and forgets what belonged to clients that left. Calls that come
/// twice are the store's business. Threads: as RpcHandler.
class VariableHandler final : public RpcHandler {
 public:
  /// `store` outlives the handler and the server that calls it.
  explicit VariableHandler(VariableStore& store) : store_(store) {}

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;
  /// A call whose request was decoded.
  void serve(std::shared_ptr<RpcCall> call, OperationBatch batch);

 private:
  void note_stream(const RpcPeer& peer, const UpdateStream& stream);

  VariableStore& store_;
  Mutex mutex_;
  /// By RpcPeer::client: the numbers under which it changed values.
  std::map<std::uint64_t, std::set<std::uint64_t>> streams_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
