// Arrival, departure and closing of a group of threads.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/shared/shared_group.h"

#include <algorithm>

#include "tutti/core/executor.h"

namespace tutti::internal {

SharedGroup::SharedGroup(int size)
    : seats_{std::vector<Seat>(static_cast<std::size_t>(size)),
             std::vector<Seat>(static_cast<std::size_t>(size))},
      progress_(static_cast<std::size_t>(size)),
      shares_parts_(size > num_hardware_threads()),
      num_lanes_(PartLanes::num_lanes(size, num_hardware_threads())),
      wait_(shares_parts_ ? SpinPolicy::kYield : SpinPolicy::kSpin),
      states_(static_cast<std::size_t>(size)) {}

bool SharedGroup::all_arrived(std::uint64_t round) const {
  for (const Seat& seat : seats_[round % 2]) {
    if (seat.arrived.load() < round) return false;
  }
  return true;
}

bool SharedGroup::all_finished(std::uint64_t round) const {
  for (const Progress& progress : progress_) {
    if (progress.finished.load() < round) return false;
  }
  return true;
}

void SharedGroup::arrive(int rank, const CollectiveCall& call, const CollectiveHeader& header,
                         TimePoint deadline) {
  const std::uint64_t round = ++progress_[static_cast<std::size_t>(rank)].round;
  Seat& own = seats_[round % 2][static_cast<std::size_t>(rank)];
  own.fingerprint = header.fingerprint();
  own.outputs = call.outputs;
  own.first_output = call.outputs.empty() ? nullptr : call.outputs.front().data;
  own.in_place = is_in_place(call);
  own.header = &header;
  own.call = call;
  own.arrived.store(round);
  wait_.notify();
  if (!wait_.wait_until(deadline, [&] { return all_arrived(round) || closed_.load(); })) {
    close(Error(ErrorCode::kDeadlineExceeded,
                concat("rank ", rank, ": ", header.describe(), ": expected all ", progress_.size(),
                       " ranks before the deadline; ", missing(round), " did not come")));
  }
  if (!closed_.load()) return;
  MutexLock lock(mutex_);
  if (round >= first_failed_round_) throw *reason_;
}

int SharedGroup::take_part(int rank) {
  return parts_taken_.take(round_of(rank), static_cast<int>(progress_.size()), num_lanes_);
}

void SharedGroup::take_own_part(int rank) {
  if (shares_parts_) parts_taken_.take_part(rank, static_cast<int>(progress_.size()), num_lanes_);
}

void SharedGroup::finish_part(int rank) {
  if (shares_parts_) {
    parts_done_.fetch_add(1);
  } else {
    progress_[static_cast<std::size_t>(rank)].finished.store(round_of(rank));
  }
  wait_.notify();
}

void SharedGroup::leave(int rank) {
  const std::uint64_t round = round_of(rank);
  const std::uint64_t parts = round * progress_.size();
  if (shares_parts_) {
    wait_.wait_until(TimePoint::max(), [&] { return parts_done_.load() >= parts; });
  } else {
    wait_.wait_until(TimePoint::max(), [&] { return all_finished(round); });
  }
}

// A rank that has seen all arrivals and then finds the group open goes on: the arrivals came before
// the closing, so closing sees them, too, and counts the round as complete. One that finds it
// closed reads what closing has decided.
void SharedGroup::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (reason_) return;
    reason_ = std::make_unique<Error>(reason);
    closed_.store(true);
    std::uint64_t latest = 0;
    for (const std::vector<Seat>& row : seats_) {
      for (const Seat& seat : row) latest = std::max(latest, seat.arrived.load());
    }
    first_failed_round_ = latest == 0 || all_arrived(latest) ? latest + 1 : latest;
  }
  wait_.notify();
}

std::string SharedGroup::missing(std::uint64_t round) const {
  std::vector<std::string> ranks;
  for (std::size_t r = 0; r < progress_.size(); ++r) {
    if (seats_[round % 2][r].arrived.load() < round) ranks.push_back(concat("rank ", r));
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
