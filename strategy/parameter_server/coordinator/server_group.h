// What a coordinator asks of its servers, to save them and to have them back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Whether an order may have failed because a server was lost: then lost() says so.
inline bool may_be_loss(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted;
}

/// All servers of a job. A cut is one snapshot per server under the same number. Errors name the
/// server. Threads: any; save() and come_back() from one.
class ServerGroup {
 public:
  virtual ~ServerGroup() = default;
  /// `told` is called at the end of a come_back() that gave servers another state than clients
  /// know: these begin to count anew.
  void when_loaded(std::function<void()> told) {
    const MutexLock lock(loaded_mutex_);
    when_loaded_ = std::move(told);
  }
  /// Where they save, and for which job. Throws as SnapshotFolder. Before the other functions.
  /// Servers that are lost meanwhile are waited for, unless the program was just set up.
  virtual void keep_in(const std::string& folder, const std::string& job_id) = 0;
  /// After keep_in(), for a job without cuts: throws for a server that has not what the program and
  /// the coordinators before this one gave it, and so must not be saved as the first cut: lost() or
  /// one that was started again.
  virtual void require_state() {}
  /// Every server has saved its values and its table of what was applied under this number when it
  /// returns, and logs what comes after. What is older than cut `keep` is deleted. Throws for a
  /// server that is lost, and as SnapshotFolder::save().
  virtual void save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) = 0;
  /// Servers that were lost, or that have not had this job's state yet, are waited for, and have
  /// all that they confirmed in it: this cut, and what came since. The others stay as they are; all
  /// refuse what is older than this term. Throws as ServerFiles::load(); kUnavailable or kAborted
  /// for one that was lost meanwhile (lost() says so until a later call has succeeded);
  /// kDeadlineExceeded naming one that did not come back; kCancelled after watch({}).
  virtual void come_back(std::uint64_t cut, std::uint64_t term) = 0;
  /// Every server refuses what is older than this term, and keeps its state. Throws for one that is
  /// lost.
  virtual void fence(std::uint64_t term) = 0;
  /// "ps 1: killed"; nothing while all live.
  virtual std::optional<std::string> lost() const { return std::nullopt; }
  /// Whether none was lost since the last order, even if not all of them have obeyed.
  virtual bool are_all_here() const { return !lost(); }
  /// `on_loss` is called after a server was lost, with locks held; empty: nobody any more, and
  /// waits of this object end.
  virtual void watch(std::function<void()> /*on_loss*/) {}
  /// Whether the job was set up to outlive its servers, so that it has to be told where they save.
  virtual bool needs_folder() const { return false; }

 protected:
  void tell_loaded() {
    const MutexLock lock(loaded_mutex_);
    if (when_loaded_) when_loaded_();
  }

 private:
  Mutex loaded_mutex_;  // held while somebody is told
  std::function<void()> when_loaded_ TUTTI_GUARDED_BY(loaded_mutex_);
};

}  // namespace tutti::internal
