// Ends the waiting for peers from another thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {

/// For ConnectOptions::interruption: the thread that learns that a peer is lost raises it, and
/// those who wait for that peer look about every 20 ms. Threads: any.
class Interruption {
 public:
  /// Every waiter throws this, now or later. The first one counts, and stays.
  void raise(const Error& reason) {
    MutexLock lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  /// Throws the reason, if there is one.
  void check() const {
    MutexLock lock(mutex_);
    if (reason_) throw Error(*reason_);
  }

 private:
  mutable Mutex mutex_;
  std::optional<Error> reason_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
