// Ends the waiting for peers from another thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/cluster/net/socket.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {

/// For ConnectOptions::interruption: whoever learns that a peer is lost raises it, so that nobody
/// waits for that peer until a deadline. Threads: any.
class Interruption {
 public:
  Interruption();
  /// Every waiter throws this, now or later. The first one counts, and stays.
  void raise(const Error& reason);
  /// Throws the reason, if there is one.
  void check() const;
  /// poll() sees POLLIN from raise() on.
  const internal::FileDescriptor& event() const { return event_; }

 private:
  const internal::FileDescriptor event_;
  mutable Mutex mutex_;
  std::optional<Error> reason_ TUTTI_GUARDED_BY(mutex_);
};

namespace internal {
/// poll_until() for one descriptor (-1: none). Throws the reason as soon as `interruption` has one;
/// nullptr: never.
int poll_unless_interrupted(pollfd& descriptor, TimePoint deadline,
                            const Interruption* interruption);
}  // namespace internal

}  // namespace tutti
