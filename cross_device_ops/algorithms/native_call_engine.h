// Base class of engines that exchange and compare headers as messages, but move data by other
// means, such as MPI.
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

/// Engine that compares the ranks' headers before each native call by exchanging messages (the
/// canonical algorithm's barrier), so that a native call never has different arguments on two
/// ranks. All other calls use messages for the data, too.
class NativeCallEngine : public CollectiveEngine {
 public:
  int rank() const final { return link_.rank; }
  int size() const final { return link_.size(); }
  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) final;
  void abort(const Error& reason) noexcept final {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::optional<Error> failure_of_peer() final { return messages_->failure_of_peer(); }
  void answer_state_queries(const std::function<std::string()>& own_state) final;
  std::vector<std::string> states_of_ranks(TimePoint deadline) final {
    return messages_->states_of_ranks(deadline);
  }

 protected:
  NativeCallEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages);

  /// Returns true if carry_out() supports the call. All ranks must return the same value, although
  /// call.count may differ between them.
  virtual bool is_native(const CollectiveCall& call, const CollectiveHeader& header) = 0;
  /// Carries out a native call that all ranks have joined.
  virtual void carry_out(const CollectiveCall& call, const CollectiveHeader& header,
                         TimePoint deadline) = 0;
  /// Called if the barrier failed on this rank. Other ranks may have passed it and be waiting in
  /// the native call.
  virtual void missed(const CollectiveCall&) {}
  /// Ends a running native call. Thread-safe; may be called repeatedly.
  virtual void stop(const Error&) noexcept {}

  void close(const Error& reason) noexcept;
  bool is_closed() const { return is_closed_; }
  void throw_if_closed();

  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;

 private:
  void run_native(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);

  std::atomic<bool> is_closed_{false};
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> told_ TUTTI_GUARDED_BY(mutex_);  // reason for a peer's abort
};

/// Throws kInvalidArgument unless the group has one local device, and a transport with the group's
/// size and rank.
void require_one_replica(std::string_view who, const Group& group);

}  // namespace tutti::internal
