// Scope in which variables on parameter servers are read once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "tutti/autograd/variable_storage.h"
#include "tutti/core/sync.h"

namespace tutti {

namespace internal {

/// Values read within one CachedReadsScope. Thread-safe.
class CachedReads {
 public:
  /// Returns the cached value of `variable`; the first call calls `read()` and caches its result.
  Tensor get(const VariableStorage& variable, const std::function<Tensor()>& read);
  /// Returns the cache of the calling thread; nullptr outside every scope.
  static CachedReads* current();

 private:
  Mutex mutex_;
  std::map<std::uint64_t, Tensor> values_ TUTTI_GUARDED_BY(mutex_);  // by VariableStorage::id()
};

/// Scope that makes `reads` the cache of the calling thread; nullptr: no cache.
class UseCachedReads {
 public:
  explicit UseCachedReads(CachedReads* reads);
  ~UseCachedReads();
  UseCachedReads(const UseCachedReads&) = delete;
  UseCachedReads& operator=(const UseCachedReads&) = delete;

 private:
  CachedReads* const previous_;
};

}  // namespace internal

/// Scope in which each variable of a ParameterServerStrategy is read from its servers once; later
/// reads return the same value, whatever was assigned meanwhile. Applies to the thread that created
/// it and to the replicas of its run(). Meant for closures that read a variable many times, as in
/// an evaluation. embedding_lookup() is not cached. Throws kFailedPrecondition if nested. tf's
/// variable caching scope.
class CachedReadsScope {
 public:
  CachedReadsScope();
  CachedReadsScope(const CachedReadsScope&) = delete;
  CachedReadsScope& operator=(const CachedReadsScope&) = delete;

 private:
  internal::CachedReads reads_;
  internal::UseCachedReads use_;
};

}  // namespace tutti
