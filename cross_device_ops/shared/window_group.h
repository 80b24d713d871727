// Where ranks that are processes of one host meet: SharedGroup in memory that all of them map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/algorithms/rank_link.h"
#include "tutti/cross_device_ops/shared/host_memory.h"
#include "tutti/cross_device_ops/shared/window.h"

namespace tutti::internal {

/// One member's side. A *round* is one collective: every rank arrives, showing its call; then it
/// may read what the others show until it arrives at the next round but one. Either all ranks see a
/// round as complete, or none does, but for ranks that die within it. Threads: close() any, the
/// rest one.
class WindowGroup {
 public:
  WindowGroup(RankLink link, std::shared_ptr<HostMemory> memory);
  /// Says that this rank has left, and why if its transport was aborted.
  ~WindowGroup();
  WindowGroup(const WindowGroup&) = delete;
  WindowGroup& operator=(const WindowGroup&) = delete;

  int rank() const { return link_.rank; }
  int size() const { return link_.size(); }
  std::uint64_t round() const { return round_; }
  const WindowLayout& layout() const { return layout_; }
  const HostMemory& memory() const { return *memory_; }
  /// This rank's window before it arrives, and everybody's afterwards.
  const Window& window(int member) const { return windows_[static_cast<std::size_t>(member)]; }
  const Window& own() const { return window(rank()); }
  /// With more processes than cores any rank may do any part.
  bool shares_parts() const { return shares_parts_; }

  /// The next round's number. The first time it makes this rank's window and finds the others'.
  std::uint64_t begin_round(const CollectiveHeader& header, TimePoint deadline);
  /// After the seat was filled: waits for all. Throws the reason for which the group is closed, or
  /// closes it with kDeadlineExceeded naming the ranks that did not come, kUnavailable or kAborted.
  void arrive(const CollectiveHeader& header, TimePoint deadline);
  /// Waits for something that peers do in this round, which fails when one of them dies, and closes
  /// the group.
  template <class Ready>
  void wait_for(const char* what, TimePoint deadline, const Ready& ready) {
    const auto ready_or_failed = [&] { return ready() || has_failed(round_); };
    try {
      const bool in_time = wait_->wait_until(deadline, ready_or_failed, [this] { probe(); });
      if (ready()) return;
      if (!in_time) close_late(what);
    } catch (const Error& error) {
      close_broken(error);
    }
    throw reason();
  }
  void notify() noexcept { wait_->notify(); }

  /// Before the parts of a round that has them, on all ranks.
  void begin_parts() { ++part_round_; }
  /// A part that nobody has taken; -1: none is left.
  int take_part();
  void finish_part();
  void take_own_part();
  /// Waits until all parts are done. When that fails, buffers in HostMemory are detached: a peer
  /// that was stopped may go on with its part one day.
  void leave(TimePoint deadline);

  /// Ends arrivals, running and later, with this reason. The first one counts.
  void close(const Error& reason) noexcept { close_from(reason, std::nullopt); }

 private:
  void connect(const CollectiveHeader& header, TimePoint deadline);
  struct Introduction {
    std::uint64_t offset = 0;               // of the window in the place
    std::array<std::uint64_t, 16> cores{};  // that the process may use, a bit each
  };
  std::vector<Introduction> introduce(const CollectiveHeader& header, TimePoint deadline);
  bool all_arrived(std::uint64_t round) const;
  std::string missing(std::uint64_t round) const;
  bool is_closed() const { return board_ != nullptr && board_->state.load() != WindowBoard::kOpen; }
  bool has_failed(std::uint64_t round) const {
    return board_->state.load() == WindowBoard::kClosed &&
           board_->first_failed_round.load() <= round;
  }
  /// This round cannot be completed: a peer has died or stopped in the middle of it.
  void close_broken(const Error& reason) noexcept;
  void close_from(const Error& reason, std::optional<std::uint64_t> first_failed) noexcept;
  void close_late(const char* what) noexcept;
  Error reason();
  /// Throws when the transport was aborted or a member is gone.
  void probe() const;
  Error why_it_leaves() const;

  const RankLink link_;
  const std::shared_ptr<HostMemory> memory_;
  const WindowLayout layout_;
  bool shares_parts_ = false;
  int num_lanes_ = 1;
  std::uint64_t round_ = 0;
  std::uint64_t part_round_ = 0;  // rounds with parts are told apart by how many were taken
  std::size_t own_offset_ = 0;
  bool is_connected_ = false;
  std::vector<Window> windows_;
  WindowBoard* board_ = nullptr;
  std::optional<ProcessWait> wait_;
  std::vector<std::unique_ptr<Work>> probes_;  // end when the member does

  Mutex mutex_;
  std::optional<Error> own_reason_ TUTTI_GUARDED_BY(mutex_);  // where the board has none
};

}  // namespace tutti::internal
