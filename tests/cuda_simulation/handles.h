// Objects behind opaque handles: a handle that was never given out or was given back is noticed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "tutti/core/sync.h"

namespace tutti::cuda_simulation {

/// Any thread.
template <class T>
class Handles {
 public:
  template <class... Arguments>
  T* add(Arguments&&... arguments) {
    auto object = std::make_shared<T>(std::forward<Arguments>(arguments)...);
    T* const handle = object.get();
    const MutexLock lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }
  /// Empty: no such handle.
  std::shared_ptr<T> find(const void* handle) {
    const MutexLock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  /// False: no such handle.
  bool remove(const void* handle) {
    const MutexLock lock(mutex_);
    return objects_.erase(handle) == 1;
  }

 private:
  Mutex mutex_;
  std::map<const void*, std::shared_ptr<T>> objects_;
};

}  // namespace tutti::cuda_simulation
