// Ends a test that hangs, and shows the stack of each thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tutti::testing {

/// Watchdog for the code that runs during this object's lifetime. If the object still exists after
/// `limit`, a thread prints the stacks of all threads of the process to standard error and ends the
/// process with exit code 1. In builds with sanitizers, the limit is six times as long.
///
///     HangWatchdog watchdog("merge_call with a dead replica");
class HangWatchdog {
 public:
  explicit HangWatchdog(std::string what, std::chrono::seconds limit = std::chrono::seconds(60));
  ~HangWatchdog();
  HangWatchdog(const HangWatchdog&) = delete;
  HangWatchdog& operator=(const HangWatchdog&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Prints the name and stack of each thread of this process to standard error.
void print_all_stacks();

}  // namespace tutti::testing
