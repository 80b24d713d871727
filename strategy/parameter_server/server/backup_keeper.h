// Sends what a server changes to the one that keeps its copy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server/change_keeper.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// A thread waits for the answers, in order. When the backup is gone, changes that it has not
/// confirmed fail (kUnavailable), and so do all that come later: the coordinator sees to a new
/// copy. Threads: any.
class BackupKeeper final : public ChangeKeeper {
 public:
  /// `term`: under which the copy begins.
  BackupKeeper(std::unique_ptr<RpcClient> backup, int server, std::uint64_t term,
               Duration timeout = std::chrono::seconds(60));
  ~BackupKeeper() override;

  /// Before the first batch: sends the state that they follow, and does not wait.
  void begin_with(const StoreSnapshot& state);
  /// Until the state is there. Throws what the backup said.
  void wait_for_state();
  bool keep(const OperationBatch& batch, Kept kept) override;

 private:
  struct Sent {
    std::shared_ptr<RpcReply> reply = {};
    Kept kept = {};
  };
  void run();
  std::optional<Error> wait_for(RpcReply& reply);

  const std::shared_ptr<RpcClient> backup_;
  const int server_;
  const std::uint64_t term_;
  const Duration timeout_;
  std::shared_ptr<RpcReply> state_reply_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> problem_ TUTTI_GUARDED_BY(mutex_);
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
