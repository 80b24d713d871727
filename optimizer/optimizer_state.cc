// State of an optimizer besides the slots of its rule.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/optimizer_state.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/names.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

namespace {

bool is_zero(const Tensor& held) {
  const Tensor values = held.to(Device{});
  return visit_floating(values.dtype(), "gradient accumulation", [&]<class T>() {
    return std::ranges::all_of(values.host_span<T>(), [](T value) { return value == T(0); });
  });
}

}  // namespace

GradientAccumulator::GradientAccumulator(const std::string& optimizer,
                                         std::span<const Variable> variables, std::int64_t steps)
    : steps_(steps) {
  internal::require(steps >= 1, optimizer, ": expected gradient_accumulation_steps >= 1, got ",
                    steps);
  num_held_ = state_variable(Tensor::scalar(0, DType::kInt64), optimizer + "/accumulated_steps");
  for (const Variable& variable : variables) {
    VariableOptions options;
    options.name = concat(optimizer, "/", variable.name(), "/gradient_accumulator");
    options.trainable = false;
    options.synchronization = VariableSynchronization::kOnRead;
    options.aggregation = VariableAggregation::kSum;
    sums_.emplace_back(Tensor::zeros(variable.shape(), variable.dtype()), std::move(options));
  }
}

void GradientAccumulator::hold(std::span<const Gradient> gradients, std::int64_t num_held) {
  const GradientTape::StopRecording stop;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Variable& sum = sums_[i];
    if (!gradients[i].is_none()) {
      const Tensor dense = gradients[i].to_dense();
      num_held == 0 ? sum.assign(dense) : sum.assign_add(dense);
    } else if (num_held == 0) {
      sum.assign(Tensor::zeros(sum.shape(), sum.dtype(), sum.value().device()));
    }
  }
  num_held_.storage().assign_replicated(AssignOp::kAdd, Tensor::scalar(1, DType::kInt64));
}

Gradient GradientAccumulator::total(std::size_t index, const Gradient& gradient) const {
  const GradientTape::StopRecording stop;
  const Tensor held = sums_[index].value();
  if (!gradient.is_none()) return add(gradient.to_dense(), held);
  // A sum of zeros counts as a missing gradient, because it would change nothing. (It is not
  // recorded whether earlier steps had a gradient.)
  return is_zero(held) ? Gradient() : Gradient(held);
}

void GradientAccumulator::clear() {
  num_held_.storage().assign_replicated(AssignOp::kAssign, Tensor::scalar(0, DType::kInt64));
}

}  // namespace tutti::internal

namespace tutti {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

// Counts instead of returning early, so that the loop is vectorized.
template <class T>
bool all_finite(std::span<const T> values) {
  std::size_t num_finite = 0;
  for (const T value : values) {
    const auto wide = static_cast<std::conditional_t<Half<T>, float, T>>(value);
    num_finite += wide - wide == 0;
  }
  return num_finite == values.size();
}

const Tensor& values_of(const Gradient& gradient) {
  return gradient.is_dense() ? gradient.dense() : gradient.slices().values;
}

/// Returns a float32 tensor [1] on the device of `values`: 0 if all are finite, else NaN.
Tensor flaw_on_device(const Tensor& values) {
  return reshape(cast(reduce_sum(values - values), DType::kFloat32), Shape{1});
}

}  // namespace

bool all_finite(const Gradient& gradient) {
  return all_finite(std::span<const Gradient>(&gradient, 1));
}

bool all_finite(std::span<const Gradient> gradients) {
  const GradientTape::StopRecording stop;
  std::map<Device, std::vector<Tensor>>
      flaws;  // summed on each GPU, so that the host reads one number per GPU
  for (const Gradient& gradient : gradients) {
    if (gradient.is_none()) continue;
    const Tensor& values = values_of(gradient);
    if (values.device().type != DeviceType::kCpu) {
      if (values.num_elements() > 0) flaws[values.device()].push_back(flaw_on_device(values));
    } else if (!visit_floating(values.dtype(), "all_finite",
                               [&]<class T>() { return all_finite<T>(values.host_span<T>()); })) {
      return false;
    }
  }
  return std::ranges::all_of(flaws, [](const auto& device) {
    return reduce_sum(concat(device.second, 0)).item() == 0.0f;
  });
}

namespace internal {

DynamicLossScale::DynamicLossScale(const std::string& optimizer,
                                   const DynamicLossScaleOptions& options)
    : options_(options) {
  const auto [initial, growth_steps, multiplier] = options;
  internal::require(initial >= 1.0 && initial <= kLargest && growth_steps >= 1 && multiplier > 1.0,
                    optimizer, ": dynamic loss scale: expected an initial_scale from 1 to ",
                    kLargest, ", growth_steps >= 1 and a multiplier above 1, got ", initial, ", ",
                    growth_steps, " and ", multiplier);
  scale_ = state_variable(Tensor::scalar(initial, DType::kFloat32), optimizer + "/dynamic_scale");
  good_steps_ = state_variable(Tensor::scalar(0, DType::kInt64), optimizer + "/step_counter");
}

DynamicLossScale::State DynamicLossScale::read() const {
  return {scale_.value().item_double(), good_steps_.value().item_int()};
}

DynamicLossScale::State DynamicLossScale::next(const State& state, bool finite) const {
  if (!finite) return {std::max(state.scale / options_.multiplier, 1.0), 0};
  if (state.good_steps + 1 < options_.growth_steps) return {state.scale, state.good_steps + 1};
  const double larger = state.scale * options_.multiplier;
  return {larger <= kLargest ? larger : state.scale, 0};
}

void DynamicLossScale::update(const State& state, bool finite) {
  const State after = next(state, finite);
  scale_.storage().assign_replicated(AssignOp::kAssign,
                                     Tensor::scalar(after.scale, DType::kFloat32));
  good_steps_.storage().assign_replicated(AssignOp::kAssign,
                                          Tensor::scalar(after.good_steps, DType::kInt64));
}

}  // namespace internal
}  // namespace tutti
