// Implements WindowGroup: connecting, arriving, leaving and closing.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/window_group.h"

#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {

namespace {

std::array<std::uint64_t, 16> own_cores() {
  std::array<std::uint64_t, 16> cores{};
  cpu_set_t allowed;
  static_assert(sizeof(allowed) == sizeof(cores));
  CPU_ZERO(&allowed);
  ::sched_getaffinity(::getpid(), sizeof(allowed), &allowed);
  std::memcpy(cores.data(), &allowed, sizeof(cores));
  return cores;
}

}  // namespace

WindowLayout::WindowLayout(int num_members) : size(static_cast<std::size_t>(num_members)) {
  constexpr std::size_t kMostSlots = std::size_t{2} << 20, kLeast = std::size_t{32} << 10;
  slot_bytes = std::clamp(kMostSlots / (size * kDepth), kLeast, std::size_t{128} << 10);
  entries = rounded_up(sizeof(WindowHeader) + sizeof(WindowProgress), kPageBytes);
  counts = entries + rounded_up(2 * sizeof(WindowEntry), kPageBytes);
  offsets = counts + rounded_up(2 * 2 * size * sizeof(std::uint64_t), kPageBytes);
  inline_data = offsets + rounded_up(2 * 2 * kMostBuffers * sizeof(std::uint64_t), kPageBytes);
  num_bytes = inline_data + 2 * kInlineBytes;
}

void Window::make() const {
  new (&shared_header()) WindowHeader;
  new (&progress()) WindowProgress;
  for (std::uint64_t round = 0; round < 2; ++round) new (&entry(round)) WindowEntry;
}

WindowGroup::WindowGroup(RankLink link, std::shared_ptr<HostMemory> memory)
    : link_(std::move(link)),
      memory_(std::move(memory)),
      of_threads_(memory_->is_of_threads()),
      rank_(link_.rank),
      size_(link_.size()),
      layout_(size_) {}

WindowGroup::~WindowGroup() {
  const Error why = reason_to_leave();
  probes_.clear();
  if (!is_connected_) return;
  close(why);
  const WindowProgress& progress = own().progress();
  std::vector<std::size_t> offsets{own_offset_};
  if (progress.slots.load() != 0) offsets.push_back(progress.slots.load());
  // A member may release its window once all members have left it.
  for (const Window& window : windows_) window.progress().num_left.fetch_add(1);
  memory_->release_when(std::move(offsets), [&progress, size = windows_.size()] {
    return progress.num_left.load() == size;
  });
}

void WindowGroup::need_slots() {
  std::atomic<std::uint64_t>& slots = own().progress().slots;
  if (slots.load() != 0) return;
  slots.store(memory_->allocate(layout_.bytes_of_slots(), HostMemory::Use::kWindow));
}

/// Returns this rank's reason for leaving: the abort of its transport, if any. Peers that notice
/// this before their own transports are aborted report the same reason.
Error WindowGroup::reason_to_leave() const {
  try {
    probe();
  } catch (const Error& error) {
    return as_it_was(error);
  }
  return Error(ErrorCode::kUnavailable,
               concat("rank ", rank(), " has left the group of ", size(),
                      " ranks: it failed, or made fewer calls; check that all workers run the same "
                      "number of steps"));
}

void WindowGroup::begin_round(const CollectiveHeader& header, TimePoint deadline) {
  if (!is_connected_) {
    {
      MutexLock lock(mutex_);
      if (own_reason_) throw *own_reason_;
    }
    try {
      connect(header, deadline);
    } catch (const Error& error) {
      const Error reason = as_it_was(error);
      close(reason);
      link_.transport->abort(reason);
      throw reason;
    }
  }
  ++round_;
}

void WindowGroup::connect(const CollectiveHeader& header, TimePoint deadline) {
  own_offset_ = memory_->allocate(layout_.num_bytes, HostMemory::Use::kWindow);
  const auto at = [&](int member, std::size_t offset) {
    return Window(offset, memory_->place(link_.ranks[static_cast<std::size_t>(member)]), layout_);
  };
  const Window mine = at(rank(), own_offset_);
  mine.make();
  windows_.assign(static_cast<std::size_t>(size()), mine);
  const std::vector<Introduction> members =
      link_.exchange(Purpose::kWindow, Introduction{own_offset_, own_cores()}, deadline,
                     concat("rank ", rank(), ": ", header.describe()));
  std::array<std::uint64_t, 16> cores{};
  for (int member = 0; member < size(); ++member) {
    const Introduction& other = members[static_cast<std::size_t>(member)];
    for (std::size_t i = 0; i < cores.size(); ++i) cores[i] |= other.cores[i];
    const std::uint64_t offset = other.offset;
    const int rank = link_.ranks[static_cast<std::size_t>(member)];
    if (offset % alignof(WindowEntry) != 0 || offset > memory_->place_bytes(rank) ||
        layout_.num_bytes > memory_->place_bytes(rank) - offset) {
      fail(ErrorCode::kDataLoss, "rank ", member,
           ": expected an aligned window within its segment of ", memory_->place_bytes(rank),
           " bytes, got one of ", layout_.num_bytes, " bytes at offset ", offset);
    }
    windows_[static_cast<std::size_t>(member)] = at(member, offset);
  }
  for (int member = 0; member < size(); ++member) {
    if (member != rank()) probes_.push_back(link_.recv(member, Purpose::kNothing, {}, {}));
  }
  // Number of distinct cores available to all members together, because each member may be bound to
  // one core. Equal on all members.
  int num_cores = 0;
  for (const std::uint64_t word : cores) num_cores += std::popcount(word);
  shares_parts_ = link_.transport->size() > num_cores;
  num_lanes_ = PartLanes::num_lanes(size(), num_cores);
  MutexLock lock(mutex_);
  shared_header_ = &window(0).shared_header();
  wait_.emplace(&shared_header_->wait, shares_parts_ ? SpinPolicy::kYield : SpinPolicy::kSpin);
  is_connected_ = true;
}

bool WindowGroup::all_arrived(std::uint64_t round) const {
  return std::ranges::all_of(windows_, [round](const Window& window) {
    return window.entry(round).arrived.load() >= round;
  });
}

void WindowGroup::arrive(const CollectiveHeader& header, TimePoint deadline) {
  const std::uint64_t round = round_;
  own().entry(round).arrived.store(round);
  // If processes compete for cores, only the last rank to arrive wakes the sleepers; otherwise,
  // every rank does.
  if (!shares_parts_ || is_last(shared_header_->arrivals, round)) wait_->notify();
  try {
    const auto ready = [&] { return all_arrived(round) || is_closed(); };
    if (!wait_->wait_until(deadline, ready, [this] { probe(); })) {
      close(Error(ErrorCode::kDeadlineExceeded,
                  concat("rank ", rank(), ": ", header.describe(), ": expected all ", size(),
                         " ranks to take part", kMissing, missing(round), " did not join")));
    }
  } catch (const Error& error) {
    close(as_it_was(error));
  }
  if (!is_closed()) return;
  const Error why = reason();
  // A state other than kClosed means that the closing member died before it wrote the reason.
  if (has_failed(round) || shared_header_->state.load() != WindowHeader::kClosed) throw why;
}

std::string WindowGroup::missing(std::uint64_t round) const {
  std::vector<std::string> ranks;
  for (int member = 0; member < size(); ++member) {
    if (window(member).entry(round).arrived.load() < round)
      ranks.push_back(concat("rank ", member));
  }
  return join(ranks);
}

int WindowGroup::take_part() {
  return shared_header_->parts_taken.take(part_round_, size(), num_lanes_);
}

void WindowGroup::finish_part() {
  if (!shares_parts_) {
    own().progress().finished.store(part_round_);
  } else if (!is_last(shared_header_->parts_done, part_round_)) {
    return;
  }
  wait_->notify();
}

void WindowGroup::leave(TimePoint deadline) {
  const std::uint64_t parts = part_round_ * static_cast<std::uint64_t>(size());
  const auto all_finished = [&] {
    if (shares_parts_) return shared_header_->parts_done.load() >= parts;
    return std::ranges::all_of(windows_, [this](const Window& window) {
      return window.progress().finished.load() >= part_round_;
    });
  };
  if (of_threads()) {
    wait_->wait_until(TimePoint::max(), all_finished, [] {});
    return;
  }
  try {
    wait_for("finish their parts", deadline, all_finished);
  } catch (...) {
    memory_->detach();
    throw;
  }
}

void WindowGroup::close_late(const char* what) noexcept {
  close_broken(Error(ErrorCode::kDeadlineExceeded,
                     concat("rank ", rank(), ": expected all ", size(), " ranks to ", what,
                            kMissing, "all joined, but one of them stopped during the call")));
}

void WindowGroup::probe() const {
  for (const auto& probe : probes_) probe->test();
}

void WindowGroup::close_broken(const Error& reason) noexcept {
  close_from(as_it_was(reason), round_);
}

// A rank that has seen all arrivals and then finds the header open continues: the arrivals precede
// any later closing, so the closing member sees them, too, and counts the round as complete. A rank
// that finds the header closed reads from it which round was the first to fail.
void WindowGroup::close_from(const Error& reason,
                             std::optional<std::uint64_t> first_failed) noexcept {
  WindowHeader* shared_header = nullptr;
  {
    MutexLock lock(mutex_);
    if (!own_reason_) own_reason_ = reason;
    shared_header = shared_header_;
  }
  if (shared_header == nullptr) return;
  std::uint32_t open = WindowHeader::kOpen;
  const auto closing = static_cast<std::uint32_t>(rank()) + 1;
  if (!shared_header->state.compare_exchange_strong(open, closing)) return;
  std::uint64_t latest = 0;
  for (const Window& window : windows_) {
    for (std::uint64_t row = 0; row < 2; ++row) {
      latest = std::max(latest, window.entry(row).arrived.load());
    }
  }
  std::uint64_t first = latest == 0 || all_arrived(latest) ? latest + 1 : latest;
  if (first_failed) first = std::min(first, *first_failed);
  shared_header->code = static_cast<std::uint32_t>(reason.code());
  const std::size_t length = std::min(reason.message().size(), WindowHeader::kTextBytes - 1);
  std::memcpy(shared_header->text.data(), reason.message().data(), length);
  shared_header->text[length] = '\0';
  shared_header->first_failed_round.store(first);
  shared_header->state.store(WindowHeader::kClosed);
  wait_->notify();
}

/// Waits for the closing member to write the reason why the group is closed, then returns that
/// reason.
Error WindowGroup::reason() {
  const auto written = [this] { return shared_header_->state.load() == WindowHeader::kClosed; };
  const TimePoint end = deadline_after(Clock::system().now(), durations::kLinger);
  while (!written() && Clock::system().now() < end) {
    Clock::system().sleep_for(std::chrono::microseconds(50));
  }
  MutexLock lock(mutex_);
  if (!written()) {  // the closing member died
    return own_reason_.value_or(Error(
        ErrorCode::kUnavailable,
        concat("rank ", shared_header_->state.load() - 1, " exited while closing the group")));
  }
  const std::size_t length = ::strnlen(shared_header_->text.data(), shared_header_->text.size());
  return Error(static_cast<ErrorCode>(shared_header_->code),
               std::string(shared_header_->text.data(), length));
}

}  // namespace tutti::internal
