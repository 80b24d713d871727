// Optimizers' rules in StableHLO: the formulas of UpdateRule::apply().
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tutti/core/error.h"
#include "tutti/tensor/device_backend.h"
#include "tutti/tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

/// One variable that is being updated: what apply() sees of each element.
struct Update {
  Update(const DeviceRule& rule_, std::span<const Hlo> values, const Hlo& gradient,
         const Hlo& constants_)
      : rule(rule_), constants(constants_), text(*gradient.text), shape(gradient.shape) {
    w = values.front();
    slots.assign(values.begin() + 1, values.end());
    g = gradient * (*this)[1];
  }

  /// Constant i beside each element.
  Hlo operator[](std::int64_t i) const {
    const Hlo one = text.slice(constants, std::array{i}, {1});
    return text.broadcast(text.reshape(one, {}), shape);
  }
  Hlo rate() const { return (*this)[0]; }
  /// Flags decide what the program is: as the host has them.
  double number(std::size_t i) const { return rule.constants[i]; }
  std::vector<Hlo> result() const {
    std::vector<Hlo> all = {w};
    all.insert(all.end(), slots.begin(), slots.end());
    return all;
  }

  const DeviceRule& rule;
  const Hlo& constants;
  HloText& text;
  const Shape shape;
  Hlo w, g;
  std::vector<Hlo> slots;
};

void sgd(Update& e) {
  const Hlo step = e.rate() * e.g;
  if (e.slots.empty()) {
    e.w = e.w - step;
    return;
  }
  const Hlo m = e[3];
  e.slots[0] = m * e.slots[0] - step;
  e.w = e.w + (e.number(4) != 0.0 ? m * e.slots[0] - step : e.slots[0]);
}

void adam(Update& e) {
  e.slots[0] = e.slots[0] + (e.g - e.slots[0]) * e[4];
  e.slots[1] = e.slots[1] + (e.g * e.g - e.slots[1]) * e[5];
  Hlo second = e.slots[1];
  if (e.slots.size() > 2) second = e.slots[2] = hlo_max(e.slots[2], e.slots[1]);
  e.w = e.w - e.slots[0] * e[3] / (hlo_sqrt(second) + e[6]);
}

void ada_max(Update& e) {
  e.slots[0] = e.slots[0] + (e.g - e.slots[0]) * e[3];
  e.slots[1] = hlo_max(e[4] * e.slots[1], hlo_abs(e.g));
  e.w = e.w - e.rate() * e.slots[0] / (e[6] * (e.slots[1] + e[5]));
}

void adagrad(Update& e) {
  e.slots[0] = e.slots[0] + e.g * e.g;
  e.w = e.w - e.rate() * e.g / hlo_sqrt(e.slots[0] + e[3]);
}

void adadelta(Update& e) {
  e.slots[0] = e[3] * e.slots[0] + e[4] * (e.g * e.g);
  const Hlo delta = -(hlo_sqrt(e.slots[1] + e[5]) * e.g / hlo_sqrt(e.slots[0] + e[5]));
  e.slots[1] = e[3] * e.slots[1] + e[4] * (delta * delta);
  e.w = e.w + e.rate() * delta;
}

void rmsprop(Update& e) {
  const bool has_momentum = e.number(6) > 0.0;
  e.slots[0] = e[3] * e.slots[0] + e[4] * (e.g * e.g);
  Hlo square = e.slots[0];
  if (e.number(7) != 0.0) {
    Hlo& average = e.slots[has_momentum ? 2 : 1];
    average = e[3] * average + e[4] * e.g;
    square = square - average * average;
  }
  Hlo step = e.rate() * e.g / hlo_sqrt(square + e[5]);
  if (has_momentum) step = e.slots[1] = e[6] * e.slots[1] + step;
  e.w = e.w - step;
}

void lion(Update& e) {
  const Hlo direction = e.slots[0] * e[3] + e.g * e[4];
  e.w = e.w - e.rate() * e.text.same("sign", {direction});
  e.slots[0] = e.slots[0] * e[5] + e.g * e[6];
}

void nadam(Update& e) {
  e.slots[0] = e.slots[0] + (e.g - e.slots[0]) * e[6];
  e.slots[1] = e.slots[1] + (e.g * e.g - e.slots[1]) * e[7];
  const Hlo mean = e.slots[0] * e[3] + e.g * e[4];
  e.w = e.w - mean * e.rate() / (hlo_sqrt(e.slots[1] * e[5]) + e[8]);
}

void moving_average(Update& e) {
  e.slots[0] = e[3] * e.slots[0] + e[4] * e.w;
  if (e.number(5) != 0.0) e.w = e.slots[0];
}

using Rule = void (*)(Update&);

Rule rule_of(DeviceRuleId id) {
  switch (id) {
    case DeviceRuleId::kSgd:
      return sgd;
    case DeviceRuleId::kAdam:
      return adam;
    case DeviceRuleId::kAdaMax:
      return ada_max;
    case DeviceRuleId::kAdagrad:
      return adagrad;
    case DeviceRuleId::kAdadelta:
      return adadelta;
    case DeviceRuleId::kRmsprop:
      return rmsprop;
    case DeviceRuleId::kLion:
      return lion;
    case DeviceRuleId::kNadam:
      return nadam;
    case DeviceRuleId::kMovingAverage:
      return moving_average;
    case DeviceRuleId::kWeightDecay:
      return [](Update&) {};
    case DeviceRuleId::kFtrl:
    case DeviceRuleId::kLamb:
    case DeviceRuleId::kLars:
      break;
  }
  return nullptr;
}

}  // namespace

std::vector<Hlo> emit_update(const DeviceRule& rule, std::span<const Hlo> values,
                             const Hlo& gradient, const Hlo& constants) {
  const Rule apply = rule_of(rule.id);
  if (!apply) {
    fail(ErrorCode::kUnimplemented,
         "the optimizers ftrl, lamb and lars cannot be a part of a step that XLA compiles; "
         "expected sgd, adam or another elementwise rule; try Adam");
  }
  Update update(rule, values, gradient, constants);
  // Whether weights decay is part of the program: most variables have none.
  if (update.number(DeviceRule::kWeightDecay) != 0.0) {
    update.w = update.w - update.w * update[2] * update.rate();
  }
  apply(update);
  return update.result();
}

}  // namespace tutti::internal
