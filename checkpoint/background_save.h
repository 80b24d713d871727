// A save on a thread of its own, and how it ended.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti::internal {

/// Starts with its construction. The destructor waits.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::function<void()> save);
  ~BackgroundSave() { wait(); }
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Until it has ended; its error, if any. One thread.
  const std::optional<Error>& wait();

 private:
  std::optional<Error> error_;  // written by the thread before it ends
  std::unique_ptr<Thread> thread_;
};

/// The error that left `body`; nothing when none did. Exceptions of other types become kInternal,
/// std::bad_alloc kResourceExhausted.
std::optional<Error> error_of(const std::function<void()>& body);

}  // namespace tutti::internal
