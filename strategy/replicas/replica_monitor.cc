// Waiting of replicas. In sequential mode conditions are looked at by whoever hands the turn on,
// under the lock, so that the schedule depends on the program alone and never on which thread wakes
// first.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/replica_monitor.h"

namespace tutti::internal {

bool ReplicaMonitor::wait(int replica, TimePoint deadline, const std::function<bool()>& ready) {
  if (!sequential_) return replicas_.wait_until(mutex_, deadline, ready);
  if (turn_ == replica && ready()) return true;
  Seat& seat = seats_[static_cast<std::size_t>(replica)];
  seat.ready = &ready;
  if (turn_ == replica) {
    last_turn_ = replica;
    turn_ = kNobody;
  }
  if (turn_ == kNobody) pass_turn();
  if (!wait_for_turn(replica, deadline)) {
    static const std::function<bool()> always = [] { return true; };
    seat.ready = &always;  // late, it goes on at its next turn
    if (turn_ == kNobody) pass_turn();
    wait_for_turn(replica, TimePoint::max());
  }
  seat.ready = nullptr;
  return ready();
}

void ReplicaMonitor::wait_as_caller(const std::function<bool()>& ready) {
  while (!caller_.wait_for(mutex_, std::chrono::hours(1), ready)) {
  }
}

void ReplicaMonitor::wait_idle(const std::function<bool()>& ready) {
  while (!replicas_.wait_for(mutex_, std::chrono::hours(1), ready)) {
  }
}

void ReplicaMonitor::notify_replicas() {
  if (sequential_ && turn_ == kNobody) pass_turn();
  replicas_.notify_all();
}

void ReplicaMonitor::begin(bool outermost) {
  if (outermost) {
    for (Seat& seat : seats_) seat = Seat{true, nullptr};
  }
  last_turn_ = kNobody;
  turn_ = kNobody;
  notify_replicas();
}

void ReplicaMonitor::enter(int replica) {
  if (sequential_) wait_for_turn(replica, TimePoint::max());
}

void ReplicaMonitor::yield(int replica) {
  if (!sequential_) return;
  static const std::function<bool()> never = [] { return false; };
  seats_[static_cast<std::size_t>(replica)].ready = &never;
  last_turn_ = replica;
  turn_ = kNobody;
  pass_turn();
}

void ReplicaMonitor::resume(int replica) {
  if (!sequential_) return;
  seats_[static_cast<std::size_t>(replica)].ready = nullptr;
  if (turn_ == kNobody) pass_turn();
  wait_for_turn(replica, TimePoint::max());
}

void ReplicaMonitor::leave(int replica) {
  seats_[static_cast<std::size_t>(replica)].active = false;
  if (!sequential_) return;
  last_turn_ = replica;
  turn_ = kNobody;
  pass_turn();
}

void ReplicaMonitor::pass_turn() {
  const int count = static_cast<int>(seats_.size());
  for (int i = 1; i <= count; ++i) {
    const int replica = (last_turn_ + i) % count;
    const Seat& seat = seats_[static_cast<std::size_t>(replica)];
    if (!seat.active || (seat.ready && !(*seat.ready)())) continue;
    turn_ = replica;
    replicas_.notify_all();
    return;
  }
}

bool ReplicaMonitor::wait_for_turn(int replica, TimePoint deadline) {
  const auto my_turn = [this, replica]() TUTTI_REQUIRES(mutex_) { return turn_ == replica; };
  if (deadline != TimePoint::max()) return replicas_.wait_until(mutex_, deadline, my_turn);
  wait_idle(my_turn);
  return true;
}

}  // namespace tutti::internal
