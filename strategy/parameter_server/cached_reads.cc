// Cache of a CachedReadsScope, by variable.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/cached_reads.h"

#include <utility>

namespace tutti {
namespace internal {
namespace {

CachedReads*& reads_of_thread() {
  thread_local CachedReads* reads = nullptr;
  return reads;
}

}  // namespace

CachedReads* CachedReads::current() { return reads_of_thread(); }

/// Replicas that read a variable concurrently may all fetch it; all return the first value.
Tensor CachedReads::get(const VariableStorage& variable, const std::function<Tensor()>& read) {
  {
    const MutexLock lock(mutex_);
    const auto known = values_.find(variable.id());
    if (known != values_.end()) return known->second;
  }
  Tensor value = read();
  const MutexLock lock(mutex_);
  return values_.emplace(variable.id(), std::move(value)).first->second;
}

UseCachedReads::UseCachedReads(CachedReads* reads)
    : previous_(std::exchange(reads_of_thread(), reads)) {}
UseCachedReads::~UseCachedReads() { reads_of_thread() = previous_; }

namespace {

CachedReads* unless_nested(CachedReads& reads) {
  if (CachedReads::current() == nullptr) return &reads;
  fail(ErrorCode::kFailedPrecondition,
       "CachedReadsScope: made inside another one of this thread; expected one at a time; try "
       "ending the outer one first, or leaving out the inner one");
}

}  // namespace
}  // namespace internal

CachedReadsScope::CachedReadsScope() : use_(internal::unless_nested(reads_)) {}

}  // namespace tutti
