// Processing of gradients before they are summed: the search for non-finite values, and rounding to
// 16 bits with error feedback.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategy/reduction/bucket_plan.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communication_options.h"

namespace tutti::internal {

/// Position of a non-finite value in a step's gradients.
struct NonFiniteValue {
  static constexpr int kSum = -1;  // all replicas' values are finite, but their sum is not
  std::size_t variable = 0;        // index in the variable list
  std::int64_t index = 0;          // index among the variable's elements, row-major
  int replica = kSum;
  auto operator<=>(const NonFiniteValue&) const = default;
};

/// Returns how many of `count` elements are infinite or NaN; 0 if the type is not a floating-point
/// type.
std::size_t count_non_finite(DType dtype, const std::byte* values, std::size_t count);
/// Returns the index of the first element that is infinite or NaN; nullopt if all are finite.
std::optional<std::size_t> first_non_finite(DType dtype, const std::byte* values,
                                            std::size_t count);
/// Returns the indices of the tensors that have infinite or NaN elements. All tensors must be on
/// one GPU; waits for that GPU.
std::vector<std::size_t> indices_of_non_finite(std::span<const Tensor> on_gpu);

/// Lowest position of a non-finite value among those that the threads of a step found. note() is
/// thread-safe.
class NonFiniteFindings {
 public:
  void note(const NonFiniteValue& value);
  /// Requires: all threads have called note().
  const std::optional<NonFiniteValue>& lowest() const { return lowest_; }
  void replace(const NonFiniteValue& value) { lowest_ = value; }

 private:
  Mutex mutex_;
  std::optional<NonFiniteValue> lowest_;
};

/// Returns "the gradient of Variable 'w' is not finite at flat index 7 on replica 1, in step 3".
std::string describe(const NonFiniteValue& value, const Variable& variable, std::uint64_t step);

/// Computes sent[i] = gradient[i] + residual[i], rounded to the wire's type; residual[i] becomes
/// the rounding error. A finite sum beyond the type's range is clamped to that range; a non-finite
/// sum is sent unchanged, with a residual of 0. `sent` may be `gradient`.
void compress_with_feedback(WireCompression compression, const float* gradient, float* residual,
                            float* sent, std::size_t count);

/// Returns kFloat16 or kBFloat16, the type in which values are sent.
DType wire_type(WireCompression compression);

/// Throws kUnimplemented naming a float64 variable, because float64 cannot be compressed.
void require_compressible(WireCompression compression, std::span<const Variable> variables);

/// Compresses a plan's float32 gradients, and stores the residuals of each replica. Thread-safe if
/// each thread compresses different elements.
class Residuals {
 public:
  /// Initializes all residuals to zero.
  Residuals(WireCompression compression, const BucketPlan& plan, std::size_t num_replicas);
  WireCompression compression() const { return compression_; }
  /// Calls compress_with_feedback() for `count` elements of a float32 bucket, starting at
  /// `element`.
  void compress(std::size_t replica, std::size_t bucket, std::size_t element, const float* gradient,
                float* sent, std::size_t count) {
    compress_with_feedback(compression_, gradient, values_[replica][bucket].data() + element, sent,
                           count);
  }

 private:
  const WireCompression compression_;
  std::vector<std::vector<std::vector<float>>> values_;  // [replica][bucket]; empty for other types
};

}  // namespace tutti::internal
