// Engines whose ranks meet with messages, and whose data goes another way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/collective_engine.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

/// Before each native call the ranks compare their headers with messages (the canonical algorithm's
/// barrier), so what carries it out never sees two different calls; the others are done with
/// messages altogether.
class MeetingEngine : public CollectiveEngine {
 public:
  int rank() const final { return link_.rank; }
  int size() const final { return link_.size(); }
  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) final;
  void abort(const Error& reason) noexcept final {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::optional<Error> failure_of_peer() final { return messages_->failure_of_peer(); }
  void tend(const std::function<std::string()>& own_state) final;
  std::vector<std::string> whereabouts(TimePoint deadline) final {
    return messages_->whereabouts(deadline);
  }

 protected:
  MeetingEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages);

  /// The same on all ranks: header.count is, call.count is not.
  virtual bool is_native(const CollectiveCall& call, const CollectiveHeader& header) = 0;
  /// Carries out a native call to which all ranks have come.
  virtual void carry_out(const CollectiveCall& call, const CollectiveHeader& header,
                         TimePoint deadline) = 0;
  /// The meeting failed on this rank, while others may have left it as if this one were to follow.
  virtual void missed(const CollectiveCall&) {}
  /// Ends a native call that runs. Any thread, more than once.
  virtual void stop(const Error&) noexcept {}

  void close(const Error& reason) noexcept;
  bool is_closed() const { return is_closed_; }
  void throw_if_closed();

  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;

 private:
  void meet(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);

  std::atomic<bool> is_closed_{false};
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> told_ TUTTI_GUARDED_BY(mutex_);  // by a peer; a call says more of it
};

/// Throws kInvalidArgument for a group that is not of one local replica per rank, without
/// transport, or that differs from it in size or rank.
void require_one_replica(std::string_view who, const Group& group);

}  // namespace tutti::internal
