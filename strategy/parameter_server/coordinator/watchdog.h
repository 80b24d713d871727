// Logs the state of all threads when no closure finishes for too long.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/coordinator_options.h"

namespace tutti {

/// Reads a count each timeout / 10. When it did not change for the timeout, logs the stacks of all
/// threads and the work under way, and starts again.
class Watchdog {
 public:
  /// `count`: number of closures that have finished; called on the watchdog's thread.
  Watchdog(WatchdogOptions options, std::function<std::uint64_t()> count);
  ~Watchdog();
  bool has_thread() const { return thread_ != nullptr; }

 private:
  void run();

  const WatchdogOptions options_;
  const std::function<std::uint64_t()> count_;
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti
