// GradientReducer: the interface by which a strategy sums an optimizer's gradients over replicas.
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

/// Sums gradients over replicas while the backward pass still produces them. A strategy installs
/// one per replica thread; without one, gradients stay local. Collective: all replicas make the
/// same calls in the same order. Used only by its replica's thread.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  /// Announces that the optimizer `name` uses the sums of the next begin(). With several workers,
  /// rate and settings must be equal on all of them.
  virtual void note_optimizer(const std::string& name, double learning_rate,
                              const std::string& settings) {
    static_cast<void>(name), static_cast<void>(learning_rate), static_cast<void>(settings);
  }
  /// Begins a reduction of the gradients of `variables`. Throws kInvalidArgument, naming the
  /// replicas, if their variables differ.
  virtual void begin(std::span<const Variable> variables) = 0;
  /// Passes the gradient (possibly none) of variable `index` of begin(). Call it once per index, in
  /// any order.
  virtual void ready(std::size_t index, const Gradient& gradient) = 0;
  /// Waits for all replicas and returns the sums over replicas, equal in all of them, in the order
  /// of begin(). A variable without a gradient on every replica has none. Afterwards no replica
  /// reads values that this step computed from variables, so updates may start.
  virtual std::vector<Gradient> finish() = 0;
  /// Returns true if finish() returned, for some variables, only the sum of this replica's shard:
  /// [count], in row-major order. Equal in all replicas.
  virtual bool gives_shards() const { return false; }
  /// Returns the sum of the whole variable for a result of finish(). Collective for shards.
  virtual Gradient whole(std::size_t index, const Gradient& gradient) {
    static_cast<void>(index);
    return gradient;
  }
  /// Returns true after finish() if all replicas must skip this step's update because its gradients
  /// are not finite (NonFinitePolicy::kSkip).
  virtual bool skips_update() const { return false; }
  /// Checks gradients that are applied without a sum. Throws kInvalidArgument, naming the variable
  /// and two replicas, if replicas that share a component of it, or have copies of it, pass
  /// different ones. Waits for gradients on GPUs.
  virtual void require_equal(std::span<const Variable> variables,
                             std::span<const Gradient> gradients) {
    static_cast<void>(variables);
    static_cast<void>(gradients);
  }
  /// Reports that this replica has applied its updates. Returns when all have, so that variables
  /// may be read again.
  virtual void updates_done() = 0;

  /// Returns the reducer of this thread; nullptr outside of a replica.
  static GradientReducer* current();
};

/// Makes `reducer` current on this thread until destroyed.
class GradientReducerScope : internal::ThreadScope<GradientReducer*> {
 public:
  explicit GradientReducerScope(GradientReducer* reducer);
};

namespace internal {
/// In a replica: runs `write` once every replica has finished reading, and returns when all have
/// run it. Elsewhere: runs `write`.
void with_exclusive_access(const std::function<void()>& write);
/// Clips the results of `reducer` (nullptr: whole gradients). Norms are those of whole gradients,
/// so the results have the same bits.
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options, GradientReducer* reducer);
}  // namespace internal

}  // namespace tutti
