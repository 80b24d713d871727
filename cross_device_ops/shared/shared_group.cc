// Arrival, departure and closing of a group of threads.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/shared/shared_group.h"

#include "tutti/core/executor.h"

namespace tutti::internal {

SharedGroup::SharedGroup(int size)
    : seats_(static_cast<std::size_t>(size)),
      wait_(size <= num_hardware_threads() ? SpinPolicy::kSpin : SpinPolicy::kYield),
      states_(static_cast<std::size_t>(size)) {}

bool SharedGroup::count_arrival() {
  std::uint64_t seen = arrivals_.load();
  do {
    if ((seen & kClosed) != 0) return false;
  } while (!arrivals_.compare_exchange_weak(seen, seen + 2));
  return true;
}

void SharedGroup::arrive(int rank, const CollectiveCall& call, const CollectiveHeader& header,
                         TimePoint deadline) {
  Seat& own = seat(rank);
  const std::uint64_t round = ++own.round;
  own.call = &call;
  own.header = &header;
  own.fingerprint = header.fingerprint();
  own.arrived.store(round, std::memory_order_relaxed);
  if (!count_arrival()) throw_reason();
  wait_.notify();
  const std::uint64_t complete = 2 * round * seats_.size();
  const auto is_over = [&] {
    const std::uint64_t seen = arrivals_.load();
    return seen >= complete || (seen & kClosed) != 0;
  };
  if (!wait_.wait_until(deadline, is_over)) {
    close(Error(ErrorCode::kDeadlineExceeded,
                concat("rank ", rank, ": ", header.describe(), ": expected all ", seats_.size(),
                       " ranks before the deadline; ", missing(round), " did not come")));
  }
  // No arrival is counted once the group is closed: a full count was complete before.
  if (arrivals_.load() < complete) throw_reason();
}

void SharedGroup::depart(int rank) {
  departures_.fetch_add(1);
  wait_.notify();
  const std::uint64_t all = seat(rank).round * seats_.size();
  wait_.wait_until(TimePoint::max(), [&] { return departures_.load() >= all; });
}

void SharedGroup::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (!reason_) reason_ = std::make_unique<Error>(reason);
  }
  arrivals_.fetch_or(kClosed);
  wait_.notify();
}

void SharedGroup::throw_reason() const {
  MutexLock lock(mutex_);
  TUTTI_CHECK(reason_ != nullptr, "a closed group has a reason");
  throw *reason_;
}

std::string SharedGroup::missing(std::uint64_t round) const {
  std::vector<std::string> ranks;
  for (std::size_t r = 0; r < seats_.size(); ++r) {
    if (seats_[r].arrived.load() < round) ranks.push_back(concat("rank ", r));
  }
  return join(ranks);
}

std::shared_ptr<SharedGroup> SharedGroup::subgroup(const std::vector<int>& ranks,
                                                   std::uint32_t number) {
  MutexLock lock(mutex_);
  std::weak_ptr<SharedGroup>& place = subgroups_[{number, ranks}];
  std::shared_ptr<SharedGroup> group = place.lock();
  if (!group) {
    group = std::make_shared<SharedGroup>(static_cast<int>(ranks.size()));
    place = group;
  }
  return group;
}

void SharedGroup::set_state(int rank, std::function<std::string()> state) {
  MutexLock lock(mutex_);
  states_[static_cast<std::size_t>(rank)] = std::move(state);
}

std::vector<std::string> SharedGroup::states() const {
  MutexLock lock(mutex_);
  std::vector<std::string> texts;
  for (const auto& state : states_) {
    texts.push_back(state ? state() : "has left the group");
  }
  return texts;
}

}  // namespace tutti::internal
