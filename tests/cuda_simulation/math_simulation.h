// How the stand-ins of cuBLASLt and cuDNN behave, and what they were asked.
// SPDX-License-Identifier: Apache-2.0
//
// They are the definitions of these libraries as plain loops: column-major matrices, leading
// dimensions, epilogues, cross-correlation, strides. They check what they are given at least as
// strictly as the libraries do.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "tutti/core/sync.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

/// Engines of convolutions, in the order in which heuristics mode A names them; the last one is
/// named by the fallback mode alone.
enum SimulatedEngine : std::int64_t {
  kTensorCoreEngine = 0,  // float32 as TF32
  kNondeterministicEngine = 1,
  kLargeWorkspaceEngine = 2,  // 1 MiB
  kSmallWorkspaceEngine = 3,  // 4 KiB
  kFallbackEngine = 4,        // none
};

struct MathBehavior {
  bool refuses_bias = false;                 // cuBLASLt has no algorithm that adds one
  bool refuses_products = false;             // cuBLASLt has no algorithm at all
  std::set<std::int64_t> refused_engines{};  // their plans cannot be finalized
  bool refuses_handles = false;              // as on a machine without a driver
};
void set_math_behavior(const MathBehavior& behavior);
MathBehavior math_behavior();

/// Since the last reset_math_counts().
struct MathCounts {
  std::int64_t blas_heuristics = 0, products = 0;
  std::int64_t dnn_heuristics = 0, plans = 0, convolutions = 0;
  std::int64_t last_engine = -1;
};
MathCounts math_counts();
void reset_math_counts();

namespace internal {
/// Adds to the counts.
void count_math(const MathCounts& more);
}  // namespace internal

/// Objects behind opaque handles: a handle that was never given out or was given back is noticed.
/// Thread-safe.
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

// --- Elements of any floating type as double.

inline double element(DType dtype, const void* data, std::int64_t i) {
  return visit_floating(dtype, "simulated library", [&]<class T>() {
    return static_cast<double>(static_cast<const T*>(data)[i]);
  });
}

/// Rounded once.
inline void set_element(DType dtype, void* data, std::int64_t i, double value) {
  visit_floating(dtype, "simulated library",
                 [&]<class T>() { static_cast<T*>(data)[i] = static_cast<T>(value); });
}

/// As tensor cores see a float32: 10 bits of fraction.
inline double as_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

inline bool is_aligned(const void* pointer, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace tutti::cuda_simulation
