// Behaviour of the simulated cuBLASLt and cuDNN, and counts of calls to them.
// SPDX-License-Identifier: Apache-2.0
//
// The simulation implements the definitions of these libraries as plain loops: column-major
// matrices, leading dimensions, epilogues, cross-correlation, strides. It validates arguments at
// least as strictly as the libraries do.
#pragma once

#include <cudnn.h>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tutti/core/sync.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

/// Convolution engines in the order in which heuristics mode A returns them. Only the fallback mode
/// returns kFallbackEngine.
enum SimulatedEngine : std::int64_t {
  kTensorCoreEngine = 0,  // computes float32 with TF32
  kNondeterministicEngine = 1,
  kLargeWorkspaceEngine = 2,  // needs 1 MiB
  kSmallWorkspaceEngine = 3,  // needs 4 KiB
  kFallbackEngine = 4,        // needs no workspace
};

struct MathBehavior {
  bool refuses_bias = false;                 // cuBLASLt has no algorithm that adds a bias
  bool refuses_products = false;             // cuBLASLt has no algorithm for any product
  std::set<std::int64_t> refused_engines{};  // plans of these engines cannot be finalized
  bool refuses_handles = false;              // creating a handle fails, as without a driver
};
void set_math_behavior(const MathBehavior& behavior);
MathBehavior math_behavior();

/// Numbers of calls since the last reset_math_counts().
struct MathCounts {
  std::int64_t blas_heuristics = 0, products = 0;
  std::int64_t dnn_heuristics = 0, plans = 0, convolutions = 0;
  std::int64_t last_engine = -1;
};
MathCounts math_counts();
void reset_math_counts();

namespace internal {
/// Adds `more` to the counts.
void count_math(const MathCounts& more);
}  // namespace internal

/// Registry of the objects behind opaque handles. Detects handles that were never created or were
/// destroyed. Thread-safe.
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
  /// Returns the object for a handle, or null if the handle does not exist.
  std::shared_ptr<T> find(const void* handle) {
    const MutexLock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  /// Destroys the object that a handle refers to. Returns false if the handle does not exist.
  bool remove(const void* handle) {
    const MutexLock lock(mutex_);
    return objects_.erase(handle) == 1;
  }

 private:
  Mutex mutex_;
  std::map<const void*, std::shared_ptr<T>> objects_;
};

/// Returns the registry of all objects of type T.
template <class T>
Handles<T>& handles() {
  static Handles<T> all;
  return all;
}

// --- Access to elements of any floating-point type as double.

inline double element(DType dtype, const void* data, std::int64_t i) {
  return visit_floating(dtype, "simulated library", [&]<class T>() {
    return static_cast<double>(static_cast<const T*>(data)[i]);
  });
}

/// Stores `value` as element i, rounded once to the type.
inline void set_element(DType dtype, void* data, std::int64_t i, double value) {
  visit_floating(dtype, "simulated library",
                 [&]<class T>() { static_cast<T*>(data)[i] = static_cast<T>(value); });
}

/// Rounds a float32 value to TF32, which has 10 fraction bits.
inline double as_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

inline bool is_aligned(const void* pointer, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// --- Helpers for the simulated cuDNN.

/// Stores `reason` for cudnnGetLastErrorString() and returns `status`.
cudnnStatus_t refuse(cudnnStatus_t status, std::string reason);

/// Returns the stream of a cuDNN handle, or nullopt if the handle does not exist.
std::optional<cudaStream_t> stream_of(cudnnHandle_t handle);

/// Returns the DType for a cuDNN type, or nullopt for a type that convolutions and softmax do not
/// support.
std::optional<DType> dtype_of_cudnn(cudnnDataType_t type);

}  // namespace tutti::cuda_simulation
