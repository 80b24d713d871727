// Rounding gradients to 16-bit types for the wire, and keeping what rounding takes away.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "strategy/reduction/bucket_plan.h"
#include "tutti/cross_device_ops/communication_options.h"

namespace tutti::internal {

/// sent[i] = gradient[i] + residual[i], rounded to the wire's type; residual[i] becomes what was
/// not sent. A finite sum beyond the type's range is sent as its largest number. A sum that is not
/// finite is sent as it is and leaves a residual of 0. `sent` may be `gradient`. Elementwise.
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
