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
  /// If true, gradient() may be called more than once.
  bool persistent = false;
  /// If true, the tape watches each trainable variable that is read.
  bool watch_accessed_variables = true;
};

/// Records the operations of this thread from construction to stop() or destruction
/// (tf.GradientTape). Tapes nest: an outer tape also records the operations of an inner tape's
/// gradient(). Until stop(), only the thread that created the tape may use it.
class GradientTape {
 public:
  /// Receives each gradient as soon as it is final, so that communication can overlap the backward
  /// pass. The layers that ran last in the forward pass get their gradients first. The tape does
  /// not keep the gradient.
  using OnReady = std::function<void(std::size_t index, const Gradient& gradient)>;

  explicit GradientTape(TapeOptions options = {});
  ~GradientTape();
  GradientTape(const GradientTape&) = delete;
  GradientTape& operator=(const GradientTape&) = delete;

  /// Makes `value` a source for which gradients can be computed.
  void watch(const Tensor& value);
  void watch(const Variable& variable);

  /// Computes d target / d sources, in the order of `sources`. A target of any shape counts as the
  /// sum of its elements, as in tf. A source on which the target does not depend has no gradient.
  /// Ends the recording of a non-persistent tape, on which a second call throws
  /// kFailedPrecondition. Throws kUnimplemented if an operation has no gradient, naming the
  /// operation. If `on_ready` is set, it receives the gradients, and all returned gradients are
  /// empty (is_none()).
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Variable> sources,
                                 const OnReady& on_ready = {});
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Tensor> sources);
  /// Overload for one source.
  Gradient gradient(const Tensor& target, const Variable& source);
  Gradient gradient(const Tensor& target, const Tensor& source);
  /// Same as gradient(), but uses `output_gradient`, instead of ones, as the gradient of the
  /// target.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> sources);
  /// Overload for variables and tensors in one pass. Returns the gradients of `variables`, then
  /// those of `values`.
  std::vector<Gradient> gradient_with(const Tensor& target, const Tensor& output_gradient,
                                      std::span<const Variable> variables,
                                      std::span<const Tensor> values);

  /// Ends the recording. Afterwards, any thread can still compute gradients.
  void stop();

  /// Returns the watched variables, in order of first use.
  std::vector<Variable> watched_variables() const;

  /// Scope in which this thread's tapes do not record operations.
  class StopRecording : internal::ThreadScope<bool> {
   public:
    StopRecording();
  };

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Computes the gradient of each input from the gradients of the outputs.
using BackwardFunction =
    std::function<std::vector<Gradient>(std::span<const Tensor> output_gradients)>;
/// Records `outputs` as computed from `inputs` with a custom gradient (tf.custom_gradient).
/// `backward` receives one gradient per output (an undefined Tensor if there is none) and returns
/// one Gradient per input. It runs in the device scope that is active in this call (in a step, the
/// replica's). Requires: the operations that computed `outputs` ran in a StopRecording scope.
void record_custom_gradient(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            BackwardFunction backward);

}  // namespace tutti
