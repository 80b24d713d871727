// What a coordinator asks of its servers, to save them and to send them back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tutti/core/error.h"

namespace tutti::internal {

/// Whether an order may have failed because a server was lost: then lost() says so.
inline bool may_be_loss(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted;
}

/// All servers of a job. A cut is one snapshot per server under the same number. Errors name the
/// server. Threads: any; save() and go_back() from one.
class ServerGroup {
 public:
  virtual ~ServerGroup() = default;
  /// Where they save, and for which job. Throws as SnapshotFolder. Before the other functions.
  /// Servers that are lost meanwhile are waited for, unless the program was just set up.
  virtual void keep_in(const std::string& folder, const std::string& job_id) = 0;
  /// Every server has saved its values and its table of what was applied under this number when it
  /// returns. What is older than cut `keep` is deleted. Throws for a server that is lost, and as
  /// SnapshotFolder::save().
  virtual void save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) = 0;
  /// Every server has the state of this cut, and refuses what is older than this term. One that is
  /// lost is begun anew, or waited for. Throws as SnapshotFolder::load(), and kFailedPrecondition
  /// naming a variable that the cut has not, or has otherwise; then no server has changed.
  /// kUnavailable or kAborted for one that was lost meanwhile (lost() says so until a later call
  /// has succeeded); kDeadlineExceeded naming one that did not come back; kCancelled after
  /// watch({}).
  virtual void go_back(std::uint64_t cut, std::uint64_t term) = 0;
  /// After keep_in(), for a job without cuts: throws for a server that has not what the program and
  /// the coordinators before this one gave it, and so must not be saved as the first cut: lost() or
  /// one that was started again.
  virtual void require_state() = 0;
  /// Whether those that are lost now, or all of them after the coordinator was, can have again what
  /// they confirmed since the last cut of this job.
  virtual bool keeps_confirmed(const std::string& /*job_id*/) const { return false; }
  /// For such servers: those that are lost are waited for and have all that they confirmed, the
  /// others stay as they are; all refuse what is older than this term. Throws as go_back().
  virtual void come_back(std::uint64_t cut, std::uint64_t term) { go_back(cut, term); }
  /// Every server refuses what is older than this term, and keeps its state. Throws for one that is
  /// lost.
  virtual void fence(std::uint64_t term) = 0;
  /// "ps 1: killed"; nothing while all live.
  virtual std::optional<std::string> lost() const = 0;
  /// Whether none was lost since the last order, even if not all of them have obeyed.
  virtual bool are_all_here() const { return !lost(); }
  /// While all live: "ps 1: ..." why they cannot keep what was confirmed, and waiting will not
  /// help.
  virtual std::optional<std::string> broken() const { return std::nullopt; }
  /// `on_loss` is called after a server was lost, or something broke, with locks held; empty:
  /// nobody any more, and waits of this object end.
  virtual void watch(std::function<void()> on_loss) = 0;
  /// Whether the job was set up to outlive its servers, so that it has to be told where they save.
  virtual bool needs_folder() const { return false; }
};

}  // namespace tutti::internal
