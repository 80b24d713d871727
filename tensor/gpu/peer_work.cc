// Waiting for an event without trusting that it happens.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/peer_work.h"

#include <algorithm>

#include "tutti/core/clock.h"

namespace tutti {
namespace {

constexpr auto kPause = std::chrono::microseconds(50);
constexpr int kPollsBeforePause = 500;  // some hundred microseconds
constexpr int kPollsOfCheck = 25;       // while there are no pauses

void check_all(const PeerWatch::List& works) {
  for (const auto& work : works) work->check();
}

}  // namespace

void PeerWatch::add(const std::shared_ptr<PeerWork>& work) {
  MutexLock lock(mutex_);
  works_.push_back(work);
}

PeerWatch::List PeerWatch::list() const {
  List alive;
  MutexLock lock(mutex_);
  std::erase_if(works_, [&](const std::weak_ptr<PeerWork>& each) {
    std::shared_ptr<PeerWork> work = each.lock();
    if (!work) return true;
    alive.push_back(std::move(work));
    return false;
  });
  return alive;
}

void PeerWatch::wait(const DeviceEvent& event) const {
  const List works = list();
  if (std::ranges::none_of(works, [](const auto& work) { return work->is_pending(); })) {
    return event.synchronize();
  }
  wait_until(event, TimePoint::max());
}

bool PeerWatch::wait_until(const DeviceEvent& event, TimePoint deadline) const {
  const List works = list();
  for (int polls = 1;; ++polls) {
    if (event.is_done()) break;
    if (polls <= kPollsBeforePause && polls % kPollsOfCheck != 0) continue;
    check_all(works);
    if (Clock::system().now() >= deadline) return false;
    if (polls > kPollsBeforePause) Clock::system().sleep_for(kPause);
  }
  check_all(works);  // work that was given up lets events pass, too
  return true;
}

}  // namespace tutti
