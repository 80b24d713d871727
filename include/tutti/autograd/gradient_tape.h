// GradientTape: reverse-mode differentiation of a thread's recorded operations.
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
  /// Allows more than one call of gradient().
  bool persistent = false;
  /// Watches trainable variables when they are read.
  bool watch_accessed_variables = true;
};

/// Records the operations of this thread from construction to destruction (tf.GradientTape). Tapes
/// nest: an outer tape also records the operations of an inner tape's gradient(). Used by the
/// thread that created it.
class GradientTape {
 public:
  /// Called with each gradient as soon as it is final, those of the last used layers first, so that
  /// communication can overlap the backward pass. The tape does not keep the gradient.
  using OnReady = std::function<void(std::size_t index, const Gradient& gradient)>;

  explicit GradientTape(TapeOptions options = {});
  ~GradientTape();
  GradientTape(const GradientTape&) = delete;
  GradientTape& operator=(const GradientTape&) = delete;

  /// Makes `value` a source whose gradients can be computed.
  void watch(const Tensor& value);
  void watch(const Variable& variable);

  /// Computes d target / d sources, in the order of `sources`. A target of any shape counts as the
  /// sum of its elements, as in tf. A source on which the target does not depend has no gradient.
  /// Ends the recording of a non-persistent tape, on which a second call throws
  /// kFailedPrecondition. Throws kUnimplemented naming an operation that has no gradient. If
  /// `on_ready` is set, it receives the gradients, and the returned ones are undefined.
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Variable> sources,
                                 const OnReady& on_ready = {});
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Tensor> sources);
  /// Overload for one source.
  Gradient gradient(const Tensor& target, const Variable& source);
  Gradient gradient(const Tensor& target, const Tensor& source);
  /// Same as gradient(), but with the gradient of the target given instead of ones.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> sources);
  /// Overload for variables and tensors in one pass; gradients of `values` follow the others.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> variables,
                                      std::span<const Tensor> values);

  /// Ends the recording. Gradients can still be computed, now by any thread.
  void stop();

  /// Returns the watched variables, in order of first use.
  std::vector<Variable> watched_variables() const;

  /// Disables all tapes of this thread while it lives.
  class StopRecording : internal::ThreadScope<bool> {
   public:
    StopRecording();
  };

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Computes the gradients of the inputs, one each, from those of the outputs.
using BackwardFunction =
    std::function<std::vector<Gradient>(std::span<const Tensor> output_gradients)>;
/// Records `outputs` as computed from `inputs` with a custom gradient (tf.custom_gradient).
/// `backward` receives one gradient per output (an undefined Tensor if there is none) and returns
/// one Gradient per input. It runs in the device scope of this call: in a step, the replica's.
/// Requires: the operations that computed `outputs` ran under StopRecording.
void record_custom_gradient(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            BackwardFunction backward);

}  // namespace tutti
