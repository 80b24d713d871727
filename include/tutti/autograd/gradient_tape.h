// Reverse-mode differentiation: records the operations of a thread, then walks back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/thread_scope.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

struct TapeOptions {
  /// gradient() may be called more than once.
  bool persistent = false;
  /// Trainable variables are watched when they are read.
  bool watch_accessed_variables = true;
};

/// Records operations of this thread from construction to destruction. Tapes nest: an outer tape
/// also records what an inner tape's gradient() computes. tf.GradientTape. Used by the thread that
/// made it.
class GradientTape {
 public:
  /// Given each gradient as soon as it is final, last used layer first: the hook that lets
  /// communication overlap the backward pass. The tape does not keep what it gave.
  using OnReady = std::function<void(std::size_t index, const Gradient& gradient)>;

  explicit GradientTape(TapeOptions options = {});
  ~GradientTape();
  GradientTape(const GradientTape&) = delete;
  GradientTape& operator=(const GradientTape&) = delete;

  /// Gradients with respect to `value` (a tensor that the tape should see as a source) can be asked
  /// for.
  void watch(const Tensor& value);
  void watch(const Variable& variable);

  /// d target / d sources, in the order of `sources`; `target` of any shape stands for the sum of
  /// its elements (tf's rule). A source that the target does not depend on has no gradient. Ends
  /// the recording of a tape that is not persistent; a second call on it throws
  /// kFailedPrecondition. Throws kUnimplemented naming an operation that has no gradient. With
  /// `on_ready`, which has got them, those that it returns are none.
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Variable> sources,
                                 const OnReady& on_ready = {});
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Tensor> sources);
  /// One source.
  Gradient gradient(const Tensor& target, const Variable& source);
  Gradient gradient(const Tensor& target, const Tensor& source);
  /// The same with d(something) / d target given instead of ones.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> sources);
  /// With respect to variables and to tensors in one walk: those of `values` stand last.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> variables,
                                      std::span<const Tensor> values);

  /// Ends the recording; gradients can be asked for as before, from now on on any thread.
  void stop();

  /// The variables that were watched, in order of first use.
  std::vector<Variable> watched_variables() const;

  /// No tape of this thread records while one of these lives.
  class StopRecording : internal::ThreadScope<bool> {
   public:
    StopRecording();
  };

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// From the gradients of the outputs to those of the inputs, one each.
using BackwardFunction =
    std::function<std::vector<Gradient>(std::span<const Tensor> output_gradients)>;
/// Records `outputs` as computed from `inputs` by something that is no operation, with its own
/// gradient: `backward` gets one gradient per output (undefined Tensors where none flows) and
/// returns one Gradient per input. The operations that made `outputs` must have run under
/// StopRecording. `backward` runs in the device scope of this call: in a step, the replica's.
/// tf.custom_gradient.
void record_custom_gradient(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            BackwardFunction backward);

}  // namespace tutti
