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
/// confirmed wait, and so do all that come later: the coordinator sees to a new copy, in which they
/// are. Without one (or when the backup refused what the server took) they fail. A
/// client that is told so of a change that was made would count on from a wrong number. While the
/// backup lives and the connection alone is broken, calls wait for it; whether that lasts too long
/// the coordinator decides by trouble(). Threads: any.
class BackupKeeper final : public ChangeKeeper {
 public:
  /// `term`: under which the copy begins.
  BackupKeeper(std::shared_ptr<RpcClient> backup, int server, std::uint64_t term,
               Duration timeout = std::chrono::seconds(60),
               Duration patience = std::chrono::seconds(300));
  ~BackupKeeper() override;

  /// Before the first batch: sends the state that they follow, and does not wait.
  void begin_with(const StoreSnapshot& state);
  /// Until the state is there. Throws what the backup said.
  void wait_for_state();
  bool keep(const OperationBatch& batch, Kept kept) override;
  /// Why changes wait for the backup longer than they should; nothing: they do not.
  std::optional<std::string> trouble() const;
  /// A later copy has all that this one got: nothing of it fails any more.
  void supersede();

 private:
  struct Sent {
    std::shared_ptr<RpcReply> reply = {};  // nullptr: the backup was gone already
    Kept kept = {};
  };
  void run();
  std::optional<Error> wait_for(RpcReply& reply, TimePoint deadline);
  std::optional<Error> outcome_of(const Sent& sent);

  const std::shared_ptr<RpcClient> backup_;
  const int server_;
  const std::uint64_t term_;
  const Duration timeout_, patience_;
  std::shared_ptr<RpcReply> state_reply_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<TimePoint> waits_since_ TUTTI_GUARDED_BY(mutex_);  // for the first answer
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> problem_ TUTTI_GUARDED_BY(mutex_);
  TimePoint give_up_at_ TUTTI_GUARDED_BY(mutex_) = TimePoint::max();  // from the problem on
  bool has_given_up_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_superseded_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
