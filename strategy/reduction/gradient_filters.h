// What happens to gradients before they are summed: search for values that are not finite, rounding
// to 16 bits with error feedback.
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

/// A place in a step's gradients.
struct NonFiniteValue {
  static constexpr int kSum = -1;  // finite in every replica; their sum is not
  std::size_t variable = 0;        // index in the list
  std::int64_t index = 0;          // in the variable's elements, row-major
  int replica = kSum;
  auto operator<=>(const NonFiniteValue&) const = default;
};

/// How many of `count` elements are infinite or NaN; 0 for types that are not floating.
std::size_t count_non_finite(DType dtype, const std::byte* values, std::size_t count);
/// Sets them to zero; their number.
std::size_t clear_non_finite(DType dtype, std::byte* values, std::size_t count);
/// The index of the first; nothing: all are finite.
std::optional<std::size_t> first_non_finite(DType dtype, const std::byte* values,
                                            std::size_t count);
/// Which of the tensors, all on one GPU, have any. Waits for the GPU.
std::vector<std::size_t> indices_of_non_finite(std::span<const Tensor> on_gpu);
/// A copy with zeros in their places; the same tensor when there are none.
Tensor without_non_finite(const Tensor& tensor);

/// The lowest of the places that the threads of a step found. Threads: note(), any.
class NonFiniteFindings {
 public:
  void note(const NonFiniteValue& value);
  /// After all threads have noted theirs.
  const std::optional<NonFiniteValue>& lowest() const { return lowest_; }
  void replace(const NonFiniteValue& value) { lowest_ = value; }

 private:
  Mutex mutex_;
  std::optional<NonFiniteValue> lowest_;
};

/// "the gradient of Variable 'w' is not finite at flat index 7 on replica 1 in step 3".
std::string describe(const NonFiniteValue& value, const Variable& variable, std::uint64_t step);

/// sent[i] = gradient[i] + residual[i], rounded to the wire's type; residual[i] becomes what was
/// not sent. A finite sum beyond the type's range is sent as its largest number; one that is not
/// finite as it is, with a residual of 0. `sent` may be `gradient`.
void compress_with_feedback(WireCompression compression, const float* gradient, float* residual,
                            float* sent, std::size_t count);

/// kFloat16 or kBFloat16: the type in which values travel.
DType wire_type(WireCompression compression);

/// Throws kUnimplemented naming a float64 variable, which cannot be compressed.
void require_compressible(WireCompression compression, std::span<const Variable> variables);

/// The compression of a plan's float32 gradients, and what is still to be sent of them, per
/// replica. An element is used by one thread at a time.
class Residuals {
 public:
  /// Zeros.
  Residuals(WireCompression compression, const BucketPlan& plan, std::size_t num_replicas);
  WireCompression compression() const { return compression_; }
  /// compress_with_feedback() of `count` elements of a bucket of float32, from `element` on.
  void compress(std::size_t replica, std::size_t bucket, std::size_t element, const float* gradient,
                float* sent, std::size_t count) {
    compress_with_feedback(compression_, gradient, values_[replica][bucket].data() + element, sent,
                           count);
  }

 private:
  const WireCompression compression_;
  std::vector<std::vector<std::vector<float>>> values_;  // [replica][bucket]; of other types: empty
};

}  // namespace tutti::internal
