// ThreadScope: sets a thread-local variable for the lifetime of an object.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace tutti::internal {

/// Base class of scopes that set a thread-local variable until they are destroyed. Scopes nest. The
/// destructor calls `variable` again, because a scope may end on another thread.
template <class T>
class ThreadScope {
 public:
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 protected:
  ThreadScope(T& (*variable)(), T value)
      : variable_(variable), previous_(std::exchange(variable(), std::move(value))) {}
  ~ThreadScope() { variable_() = std::move(previous_); }

 private:
  T& (*const variable_)();
  T previous_;
};

}  // namespace tutti::internal
