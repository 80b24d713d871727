// How the stand-ins of cuBLASLt and cuDNN behave, and what they were asked.
// SPDX-License-Identifier: Apache-2.0
//
// They are the definitions of these libraries as plain loops: column-major matrices, leading
// dimensions, epilogues, cross-correlation, strides. They check what they are given at least as
// strictly as the libraries do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

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

}  // namespace tutti::cuda_simulation
