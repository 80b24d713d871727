// The public face of tapes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_tape.h"

#include <utility>

#include "autograd/recording.h"
#include "core/names.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

struct GradientTape::Impl {
  explicit Impl(const TapeOptions& tape_options) : options(tape_options), recording(options) {}

  /// Checks the arguments, ends the recording of a tape that is not persistent and walks back.
  std::vector<Gradient> gradient(const Tensor& target, const Tensor& output_gradient,
                                 std::vector<int> sources, const OnReady& on_ready) {
    check_target(target, output_gradient);
    if (used) {
      fail(ErrorCode::kFailedPrecondition,
           "GradientTape::gradient: a tape that is not persistent can be asked once; expected one "
           "call, got a second; try TapeOptions{.persistent = true}");
    }
    if (!options.persistent) {
      used = true;
      recording.end();
    }
    note_target(target);
    const Tensor initial = output_gradient.defined()
                               ? output_gradient
                               : Tensor::ones(target.shape(), target.dtype(), target.device());
    return internal::walk_back(
        recording, std::move(sources),
        options.persistent ? internal::NodeLifetime::kKeep : internal::NodeLifetime::kRelease,
        recording.slot_of(target), initial, on_ready);
  }

  void note_target(const Tensor& target) const {
    ReplicaGroup* const group = ReplicaGroup::find_current();
    if (!group || group->num_replicas() == 1) return;
    group->note_target(recording.mean_of_rows(recording.slot_of(target)));
  }

  static void check_target(const Tensor& target, const Tensor& output_gradient) {
    internal::require(target.defined() && is_floating(target.dtype()),
                      "GradientTape::gradient: expected a floating target, got ",
                      target.defined() ? to_string(target.dtype()) : "an undefined tensor");
    if (!output_gradient.defined()) return;
    internal::require(
        output_gradient.shape() == target.shape() && output_gradient.dtype() == target.dtype(),
        "GradientTape::gradient_with: the output gradient does not fit the target; expected ",
        target.shape(), " of ", target.dtype(), ", got ", output_gradient.shape(), " of ",
        output_gradient.dtype());
  }

  template <class Source>
  std::vector<int> slots(std::span<const Source> sources) const {
    std::vector<int> result;
    for (const Source& source : sources) result.push_back(recording.slot_of(source));
    return result;
  }

  TapeOptions options;
  internal::Recording recording;
  bool used = false;
};

GradientTape::GradientTape(TapeOptions options) : impl_(std::make_unique<Impl>(options)) {}
GradientTape::~GradientTape() = default;

void GradientTape::watch(const Tensor& value) { impl_->recording.watch(value); }
void GradientTape::watch(const Variable& variable) { impl_->recording.watch(variable); }

std::vector<Gradient> GradientTape::gradient(const Tensor& target,
                                             std::span<const Variable> sources,
                                             const OnReady& on_ready) {
  return impl_->gradient(target, Tensor(), impl_->slots(sources), on_ready);
}

std::vector<Gradient> GradientTape::gradient(const Tensor& target,
                                             std::span<const Tensor> sources) {
  return impl_->gradient(target, Tensor(), impl_->slots(sources), {});
}

Gradient GradientTape::gradient(const Tensor& target, const Variable& source) {
  return gradient(target, std::span(&source, 1)).front();
}

Gradient GradientTape::gradient(const Tensor& target, const Tensor& source) {
  return gradient(target, std::span(&source, 1)).front();
}

std::vector<Gradient> GradientTape::gradient_with(const Tensor& target,
                                                  const Tensor& output_gradient,
                                                  std::span<const Variable> sources) {
  return gradient_with(target, output_gradient, sources, {});
}

std::vector<Gradient> GradientTape::gradient_with(const Tensor& target,
                                                  const Tensor& output_gradient,
                                                  std::span<const Variable> variables,
                                                  std::span<const Tensor> values) {
  internal::require(
      output_gradient.defined(),
      "GradientTape::gradient_with: the output gradient is undefined; try gradient()");
  std::vector<int> slots = impl_->slots(variables);
  for (const int slot : impl_->slots(values)) slots.push_back(slot);
  return impl_->gradient(target, output_gradient, std::move(slots), {});
}

void GradientTape::stop() { impl_->recording.end(); }

std::vector<Variable> GradientTape::watched_variables() const {
  return impl_->recording.variables();
}

GradientTape::StopRecording::StopRecording() : ThreadScope(internal::recording_stopped, true) {}

void record_custom_gradient(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            BackwardFunction backward) {
  for (const Tensor& output : outputs) {
    for (const Tensor& input : inputs) {
      internal::require(
          output.id() != input.id(),
          "record_custom_gradient: an output is one of the inputs; try output.alias()");
    }
  }
  const BackwardFunction in_this_scope =
      [scope = current_device_scope(),
       backward = std::move(backward)](std::span<const Tensor> output_gradients) {
        const DeviceScope where_it_was_recorded(scope);
        return backward(output_gradients);
      };
  internal::for_each_recording(
      [&](internal::Recording& recording) { recording.on_custom(inputs, outputs, in_this_scope); });
}

}  // namespace tutti
