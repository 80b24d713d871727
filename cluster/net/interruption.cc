// A reason, and an event that poll() sees.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/interruption.h"

#include <unistd.h>

#include <array>
#include <cstdint>

namespace tutti {

Interruption::Interruption() : event_(internal::make_wake_event()) {}

void Interruption::raise(const Error& reason) {
  MutexLock lock(mutex_);
  if (reason_) return;
  reason_ = reason;
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof(one));  // never read, so it stays
}

void Interruption::check() const {
  MutexLock lock(mutex_);
  if (reason_) throw Error(*reason_);
}

int internal::poll_unless_interrupted(pollfd& descriptor, TimePoint deadline,
                                      const Interruption* interruption) {
  if (interruption == nullptr) return poll_until(std::span(&descriptor, 1), deadline);
  std::array<pollfd, 2> both{descriptor, pollfd{interruption->event().get(), POLLIN, 0}};
  (void)poll_until(both, deadline);
  interruption->check();
  descriptor.revents = both[0].revents;
  return descriptor.revents != 0 ? 1 : 0;
}

}  // namespace tutti
