// GradientReducer, the interface through which a strategy sums an optimizer's gradients over
// replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/thread_scope.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

struct ClippingOptions;

/// Interface that sums gradients over replicas while the backward pass is still producing them. A
/// strategy installs a reducer on each replica thread; without a reducer, gradients stay local.
/// Collective: all replicas make the same calls in the same order. Used only by its replica's
/// thread.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  /// Announces that the next begin() starts a reduction for the optimizer `name`. The learning rate
  /// and the settings must be equal on all workers.
  virtual void note_optimizer(const std::string& name, double learning_rate,
                              const std::string& settings) {
    static_cast<void>(name), static_cast<void>(learning_rate), static_cast<void>(settings);
  }
  /// Begins a reduction of the gradients of `variables`. Throws kInvalidArgument, naming the
  /// replicas, if replicas pass different variables.
  virtual void begin(std::span<const Variable> variables) = 0;
  /// Passes the gradient of variables[index], where `variables` is the argument of begin(). The
  /// gradient may be empty (is_none()). Call it once per index, in any order.
  virtual void ready(std::size_t index, const Gradient& gradient) = 0;
  /// Waits for all replicas and returns the sums over replicas, in the order passed to begin() and
  /// equal on all replicas; a sum is empty (is_none()) if no replica has a gradient. After finish()
  /// returns, no replica reads values that this step computed from variables, so updates may start.
  virtual std::vector<Gradient> finish() = 0;
  /// Returns true if, for some variables, finish() returned only this replica's shard of the sum:
  /// `count` elements in row-major order. The result is the same on all replicas.
  virtual bool gives_shards() const { return false; }
  /// Returns the gradient sum for the full variable. `gradient` is result `index` of finish().
  /// Collective if that result is only a shard.
  virtual Gradient whole(std::size_t index, const Gradient& gradient) {
    static_cast<void>(index);
    return gradient;
  }
  /// After finish(): returns true if all replicas must skip this step's update, because a gradient
  /// is not finite (NonFinitePolicy::kSkip).
  virtual bool skips_update() const { return false; }
  /// Checks gradients that are applied without a sum over replicas. Throws kInvalidArgument, naming
  /// the variable and two replicas, if replicas that share a component of the variable, or hold
  /// copies of the variable, pass different gradients. Waits for gradients on GPUs.
  virtual void require_equal(std::span<const Variable> variables,
                             std::span<const Gradient> gradients) {
    static_cast<void>(variables);
    static_cast<void>(gradients);
  }
  /// Reports that this replica has applied its updates. Returns when all replicas have done so;
  /// then variables may be read again.
  virtual void updates_done() = 0;

  /// Returns the reducer of this thread; nullptr outside replicas.
  static GradientReducer* current();
};

/// Scope that makes `reducer` current on this thread.
class GradientReducerScope : internal::ThreadScope<GradientReducer*> {
 public:
  explicit GradientReducerScope(GradientReducer* reducer);
};

namespace internal {
/// In a replica, waits until all replicas have finished reading, runs `write`, and returns when all
/// replicas have run it. Outside replicas, just runs `write`.
void with_exclusive_access(const std::function<void()>& write);
/// Clips `gradients`, which are the results of `reducer` (possibly shards) or, if `reducer` is
/// nullptr, full gradients. Norms are those of the full gradients in both cases.
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options, GradientReducer* reducer);
}  // namespace internal

}  // namespace tutti
