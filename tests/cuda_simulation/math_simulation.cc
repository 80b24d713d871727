// Settings and counts of the stand-ins of cuBLASLt and cuDNN.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/math_simulation.h"

#include "tutti/core/sync.h"

namespace tutti::cuda_simulation {
namespace {

struct State {
  Mutex mutex;
  MathBehavior behavior;
  MathCounts counts;
};

State& state() {
  static State state;
  return state;
}

}  // namespace

void set_math_behavior(const MathBehavior& behavior) {
  const MutexLock lock(state().mutex);
  state().behavior = behavior;
}

MathBehavior math_behavior() {
  const MutexLock lock(state().mutex);
  return state().behavior;
}

MathCounts math_counts() {
  const MutexLock lock(state().mutex);
  return state().counts;
}

void reset_math_counts() {
  const MutexLock lock(state().mutex);
  state().counts = {};
}

namespace internal {

void count_math(const MathCounts& more) {
  const MutexLock lock(state().mutex);
  MathCounts& counts = state().counts;
  counts.blas_heuristics += more.blas_heuristics;
  counts.products += more.products;
  counts.dnn_heuristics += more.dnn_heuristics;
  counts.plans += more.plans;
  counts.convolutions += more.convolutions;
  if (more.last_engine >= 0) counts.last_engine = more.last_engine;
}

}  // namespace internal
}  // namespace tutti::cuda_simulation
