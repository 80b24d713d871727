// Weight decay before any rule.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/decoupled_weight_decay.h"

#include <algorithm>

#include "tutti/core/json.h"
#include "tutti/tensor/device_backend.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlock = 2048;

template <class T>
void decay(const UpdateArgs& args) {
  T* __restrict const w = args.weights<T>().data();
  const T lr = static_cast<T>(args.scalars.learning_rate);
  const T weight_decay = static_cast<T>(args.scalars.weight_decay);
  for (std::size_t i = 0; i < args.count; ++i) w[i] -= w[i] * weight_decay * lr;
}

}  // namespace

Json DecoupledWeightDecayRule::describe() const {
  return Json::Object{{"rule", "decoupled_weight_decay"}, {"then", rule_.describe()}};
}

void DecoupledWeightDecayRule::apply(const UpdateArgs& args) const {
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
    visit_arithmetic_floating(args.dtype, name(), [&]<class T>() { decay<T>(block); });
    rule_.apply(block);
  }
}

std::optional<DeviceRule> DecoupledWeightDecayRule::device_rule(
    const UpdateScalars& scalars) const {
  std::optional<DeviceRule> rule = rule_.device_rule(scalars);
  if (rule) rule->constants[DeviceRule::kWeightDecay] = scalars.weight_decay;
  return rule;
}

}  // namespace tutti::internal
