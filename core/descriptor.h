// Descriptors of the system that close themselves, and waiting for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <span>
#include <utility>

#include "tutti/core/clock.h"

namespace tutti::internal {

/// Owns a file descriptor of the system.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  /// The caller closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// A counter that poll() sees: what wakes a thread out of it.
FileDescriptor make_wake_event();
/// poll() sees POLLIN when the process ends. Not open: the system has no such thing, or no process.
FileDescriptor watch_process(int pid);

/// Waits until one is ready or the deadline; returns how many are. Hands the run token on, and
/// counts as asleep, while it waits.
int poll_until(std::span<pollfd> descriptors, TimePoint deadline);

}  // namespace tutti::internal
