// Makes local gradients global: the small interface between an optimizer and a strategy.
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

/// Sums gradients over replicas, while they still appear. Strategies install one per replica
/// thread; without one, gradients stay local. Used by the replica's own thread; all replicas make
/// the same calls in the same order.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  /// The optimizer `name` takes the sums of the next begin(). With several workers, rate and
  /// settings must be alike on all of them.
  virtual void note_optimizer(const std::string& name, double learning_rate,
                              const std::string& settings) {
    static_cast<void>(name), static_cast<void>(learning_rate), static_cast<void>(settings);
  }
  /// Gradients of `variables` will come. Throws kInvalidArgument naming the replicas whose
  /// variables differ.
  virtual void begin(std::span<const Variable> variables) = 0;
  /// Variable `index` of begin() has this gradient (perhaps none). Any order, once per index.
  virtual void ready(std::size_t index, const Gradient& gradient) = 0;
  /// Waits for all replicas; the sums over replicas, in the order of begin(), equal in all
  /// replicas. A variable without a gradient on every replica has none. After it no replica reads
  /// what this step computed from variables: updates may start.
  virtual std::vector<Gradient> finish() = 0;
  /// Whether finish() gave this replica, of some variables, the sum of its shard alone: [count], in
  /// row-major order. The same in all replicas.
  virtual bool gives_shards() const { return false; }
  /// The sum of the whole variable of what finish() gave: where that is a shard, all replicas meet.
  virtual Gradient whole(std::size_t index, const Gradient& gradient) {
    static_cast<void>(index);
    return gradient;
  }
  /// After finish(): whether this step's update is to be left out, on all replicas alike, because
  /// its gradients are not finite (NonFinitePolicy::kSkip).
  virtual bool skips_update() const { return false; }
  /// For gradients that are applied without being summed: throws kInvalidArgument, naming the
  /// variable and two replicas, where replicas share a component of it (which is written once), or
  /// have copies of it, and give different ones. On GPUs it waits for such gradients.
  virtual void require_equal(std::span<const Variable> variables,
                             std::span<const Gradient> gradients) {
    static_cast<void>(variables);
    static_cast<void>(gradients);
  }
  /// This replica has applied its updates; returns when all have, so that variables may be read
  /// again.
  virtual void updates_done() = 0;

  /// The reducer of this thread; nullptr outside a replica.
  static GradientReducer* current();
};

/// Makes `reducer` current on this thread until destroyed.
class GradientReducerScope : internal::ThreadScope<GradientReducer*> {
 public:
  explicit GradientReducerScope(GradientReducer* reducer);
};

namespace internal {
/// In a replica: runs `write` once every replica has read what it needs, and returns when all have
/// run it. Elsewhere at once.
void while_nobody_reads(const std::function<void()>& write);
/// clip_gradients() of what `reducer` gave (nullptr: of whole gradients): limits of norms are those
/// of the whole, with the same bits.
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options, GradientReducer* reducer);
}  // namespace internal

}  // namespace tutti
