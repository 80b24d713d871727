// Rules by formulas, and rules around a rule: weight decay before it, a moving average after it.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/optimizer_state.h"

#include <algorithm>

#include "tensor/cpu/update_rules.h"
#include "tutti/core/json.h"

namespace tutti {

void FormulaRule::apply(const UpdateArgs& args) const { update(args, nullptr); }

void FormulaRule::direct(const UpdateArgs& args, void* direction) const {
  if (!uses_norms()) fail(ErrorCode::kInternal, name(), ": has no direction, as it uses no norms");
  if (args.count > 0) update(args, direction);
}

void FormulaRule::update(const UpdateArgs& args, void* direction) const {
  const std::optional<DeviceRule> rule = device_rule(args.scalars);
  if (!rule) fail(ErrorCode::kInternal, name(), ": a FormulaRule needs a device_rule()");
  internal::update_on_host(name(), *rule, args, direction);
}

namespace internal {

// Weight decay before any rule.

namespace {

constexpr std::size_t kBlock = 2048;

}  // namespace

Json DecoupledWeightDecayRule::describe() const {
  return Json::Object{{"rule", "decoupled_weight_decay"}, {"then", rule_.describe()}};
}

void DecoupledWeightDecayRule::apply(const UpdateArgs& args) const {
  const DeviceRule decay{DeviceRuleId::kWeightDecay,
                         {args.scalars.learning_rate, 1.0, args.scalars.weight_decay}};
  const std::size_t element_size = size_of(args.dtype);
  std::vector<void*> slots(args.slots_data.size());
  for (std::size_t first = 0; first < args.count; first += kBlock) {
    const std::size_t offset = first * element_size;
    UpdateArgs block = args;
    block.count = std::min(kBlock, args.count - first);
    block.weights_data = static_cast<std::byte*>(args.weights_data) + offset;
    block.gradient_data = static_cast<const std::byte*>(args.gradient_data) + offset;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      slots[s] = static_cast<std::byte*>(args.slots_data[s]) + offset;
    }
    block.slots_data = slots;
    update_on_host(name(), decay, block, nullptr);
    rule_.apply(block);
  }
}

std::optional<DeviceRule> DecoupledWeightDecayRule::device_rule(
    const UpdateScalars& scalars) const {
  std::optional<DeviceRule> rule = rule_.device_rule(scalars);
  if (rule) rule->constants[DeviceRule::kWeightDecay] = scalars.weight_decay;
  return rule;
}

// The exponential moving average of weights.

MovingAverageRule::MovingAverageRule(std::string_view optimizer, const EmaOptions& options)
    : options_(options) {
  if (!(options.momentum >= 0.0 && options.momentum <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, optimizer, ": expected an ema momentum in [0, 1], got ",
         options.momentum);
  }
  if (options.overwrite_frequency.value_or(1) < 1) {
    fail(ErrorCode::kInvalidArgument, optimizer,
         ": expected an ema overwrite_frequency of 1 or more, or none, got ",
         *options.overwrite_frequency);
  }
}

Json MovingAverageRule::describe() const {
  const auto frequency = options_.overwrite_frequency;
  return Json::Object{{"rule", name()},
                      {"momentum", options_.momentum},
                      {"overwrite_frequency", frequency ? Json(*frequency) : Json()}};
}

double MovingAverageRule::momentum_at(std::int64_t iteration) const {
  return iteration == 0 ? 0.0 : options_.momentum;
}

bool MovingAverageRule::overwrites_at(std::int64_t iteration) const {
  return options_.overwrite_frequency && (iteration + 1) % *options_.overwrite_frequency == 0;
}

std::optional<DeviceRule> MovingAverageRule::device_rule(const UpdateScalars& scalars) const {
  const double momentum = momentum_at(scalars.iteration);
  return DeviceRule{
      DeviceRuleId::kMovingAverage,
      {0.0, 1.0, 0.0, momentum, 1.0 - momentum, overwrites_at(scalars.iteration) ? 1.0 : 0.0}};
}

}  // namespace internal
}  // namespace tutti
