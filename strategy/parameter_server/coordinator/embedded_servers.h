// Servers that are objects of the coordinator's process, and can die and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/server_group.h"
#include "tutti/strategy/parameter_server/server/snapshot_file.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// Threads: any, all functions.
class EmbeddedServer final : public VariableService {
 public:
  explicit EmbeddedServer(int server);
  std::string name() const override { return name_; }
  /// While it is dead answers are an OriginError of a server, kUnavailable.
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;

  /// As the end of a process: all values are gone.
  void kill(const std::string& why);
  /// "killed"; nothing while it lives.
  std::optional<std::string> why_dead() const;
  /// Throws kUnavailable while it is dead.
  StoreSnapshot snapshot() const;
  /// Throws kFailedPrecondition naming a shard of this life that `state` has not, or otherwise.
  void check_knows_all(const StoreSnapshot& state) const;
  /// A new life with this state. What the former one still does counts for nothing.
  void live_on(const StoreSnapshot& state);
  /// Throws kUnavailable while it is dead.
  void fence(std::uint64_t term) const;

 private:
  std::shared_ptr<VariableStore> life() const;
  std::shared_ptr<VariableStore> require_life() const;

  const std::string name_;
  mutable Mutex mutex_;
  std::shared_ptr<VariableStore> life_ TUTTI_GUARDED_BY(mutex_);
  std::string why_dead_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t incarnation_ TUTTI_GUARDED_BY(mutex_) = 0;
};

class EmbeddedServers final : public ServerGroup {
 public:
  explicit EmbeddedServers(int count);
  std::vector<std::shared_ptr<VariableService>> services() const;

  /// See EmbeddedServer::kill(); whoever watches is told.
  void kill(int server, const std::string& why = "killed");
  /// Called at the end of each go_back(): whoever talks to servers begins to count anew.
  void when_back(std::function<void()> told);

  void keep_in(const std::string& folder, const std::string& job_id) override;
  void require_state() override;
  void save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) override;
  void go_back(std::uint64_t cut, std::uint64_t term) override;
  void fence(std::uint64_t term) override;
  std::optional<std::string> lost() const override;
  void watch(std::function<void()> on_loss) override;

 private:
  std::vector<std::shared_ptr<EmbeddedServer>> servers_;
  std::vector<std::unique_ptr<SnapshotFolder>> folders_;  // by server; set by keep_in()
  Mutex mutex_;
  std::function<void()> on_loss_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> when_back_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
