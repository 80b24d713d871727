// A block of a program in which variables on parameter servers are read once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "tutti/autograd/variable_storage.h"
#include "tutti/core/sync.h"

namespace tutti {

namespace internal {

/// What was read in a block. Threads: any.
class CachedReads {
 public:
  /// What an earlier call for this variable gave, else `read()`, which is kept.
  Tensor get(const VariableStorage& variable, const std::function<Tensor()>& read);
  /// This thread's reads; nullptr outside of every scope.
  static CachedReads* current();

 private:
  Mutex mutex_;
  std::map<std::uint64_t, Tensor> values_ TUTTI_GUARDED_BY(mutex_);  // by VariableStorage::id()
};

/// Makes `reads` (or none) those of this thread until destroyed.
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

/// While it lives, a variable of a ParameterServerStrategy is read from its servers at its first
/// read; later ones give the same value, whatever was assigned meanwhile. Holds for the thread that
/// made it and for the replicas of its run(). For closures that read a variable many times, in an
/// evaluation, say; embedding_lookup() reads rows as ever. Throws kFailedPrecondition inside
/// another one. tf's variable caching scope.
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
