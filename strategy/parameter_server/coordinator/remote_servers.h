// Servers that are processes of their own, and can die and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/remote_server.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Each server saves in the folder of that name on its own machine. Threads: any, all functions;
/// those that give orders from one at a time.
class RemoteServers final : public ServerGroup {
 public:
  /// `patience`: for a server that was lost to be back, and for its answer to an order.
  RemoteServers(std::vector<RemoteServerOptions> servers, Duration patience);
  ~RemoteServers() override;

  /// Until the processes that are there now can be used: the program is being set up. Throws
  /// kDeadlineExceeded naming those that are missing, and why.
  void wait_for_all(TimePoint deadline);

  void keep_in(const std::string& folder, const std::string& job_id) override;
  void save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) override;
  void require_state() override;
  void come_back(std::uint64_t cut, std::uint64_t term) override;
  void fence(std::uint64_t term) override;
  std::optional<std::string> lost() const override;
  bool are_all_here() const override;
  void watch(std::function<void()> on_loss) override;
  bool needs_folder() const override { return true; }

 private:
  /// A server, and the life of it that belongs to the run.
  struct Member {
    std::unique_ptr<RemoteServer> link = {};
    std::uint64_t life = 0;
    /// The one that has what the job begins with: what the program, or another job, gave it.
    std::uint64_t begun_life = 0;
    std::uint64_t whole_life = 0;  // the last one that has the job's state
  };
  using What = decltype(ServerOrder::what);
  void order_all(const What& what);
  /// Each server gets what `what_of` gives for it. `obeyed`, if any, is called for those that did,
  /// with mutex_ held.
  void order_each(const std::function<What(std::size_t server)>& what_of,
                  const std::function<void(std::size_t server)>& obeyed = {});
  bool is_new(std::size_t server) const;
  void forget_job();
  bool are_here() const TUTTI_REQUIRES(mutex_);
  void end_bringing_back();
  void look_at_all();
  std::uint64_t await(std::shared_ptr<RpcReply> reply, const std::string& name);
  void take_lives(TimePoint deadline, const char* who);
  void tell_change();

  const Duration patience_;
  // Of the thread that gives orders.
  std::string folder_, job_id_, former_folder_;
  bool clients_begin_anew_ = false;  // what servers told them is of before the job's state
  Mutex told_mutex_;                 // held while somebody is told; before mutex_
  std::function<void()> on_loss_ TUTTI_GUARDED_BY(told_mutex_);
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_interrupted_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_ending_ TUTTI_GUARDED_BY(mutex_) = false;
  /// Some may have the state and the term of the last call, and some not.
  bool is_unfinished_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<Member> members_;  // lives: guarded by mutex_; links call this object
};

}  // namespace tutti::internal
