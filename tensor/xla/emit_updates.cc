// Optimizers' rules in StableHLO: the formulas of UpdateRule::apply().
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tensor/device_backend.h"
#include "tensor/xla/emitters.h"
#include "tutti/core/error.h"

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

  /// Constant i, alone and beside each element.
  Hlo scalar(std::int64_t i) const {
    return text.reshape(text.slice(constants, std::array{i}, {1}), {});
  }
  Hlo operator[](std::int64_t i) const { return text.broadcast(scalar(i), shape); }
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
  if (e.slots.size() > 2) second = e.slots[2] = larger(e.slots[2], e.slots[1]);
  e.w = e.w - e.slots[0] * e[3] / (sqrt(second) + e[6]);
}

void ada_max(Update& e) {
  e.slots[0] = e.slots[0] + (e.g - e.slots[0]) * e[3];
  e.slots[1] = larger(e[4] * e.slots[1], abs(e.g));
  e.w = e.w - e.rate() * e.slots[0] / (e[6] * (e.slots[1] + e[5]));
}

void adagrad(Update& e) {
  e.slots[0] = e.slots[0] + e.g * e.g;
  e.w = e.w - e.rate() * e.g / sqrt(e.slots[0] + e[3]);
}

void adadelta(Update& e) {
  e.slots[0] = e[3] * e.slots[0] + e[4] * (e.g * e.g);
  const Hlo delta = -(sqrt(e.slots[1] + e[5]) * e.g / sqrt(e.slots[0] + e[5]));
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
  Hlo step = e.rate() * e.g / sqrt(square + e[5]);
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
  e.w = e.w - mean * e.rate() / (sqrt(e.slots[1] * e[5]) + e[8]);
}

void moving_average(Update& e) {
  e.slots[0] = e[3] * e.slots[0] + e[4] * e.w;
  if (e.number(5) != 0.0) e.w = e.slots[0];
}

void ftrl(Update& e) {
  const auto raised = [&](const Hlo& x) {
    return e.number(6) == 0.5 ? sqrt(x) : e.text.same("power", {x, e[6]});
  };
  const Hlo sum = e.slots[0] + e.g * e.g, power = raised(sum);
  const Hlo change = (power - raised(e.slots[0])) / e.rate() * e.w;
  const Hlo linear = e.slots[1] + (e.g + e[5] * e.w - change);
  const Hlo clipped = e.text.same("clamp", {-e[3], linear, e[3]});
  e.w = (clipped - linear) / (power / e.rate() + e[4]);
  e.slots = {sum, linear};
}

// Rules with norms of the whole variable.

Hlo norm_of(const Hlo& x) {
  return sqrt(x.text->reduce("add", x * x, 0.0, (1u << x.shape.rank()) - 1));
}

/// The rate times `trust`, which counts where neither norm is 0.
Hlo trusted_rate(const Update& e, const Hlo& of_weights, const Hlo& of_step, const Hlo& trust) {
  HloText& text = e.text;
  const Hlo zero = text.constant(0.0, {}, trust.type), one = text.constant(1.0, {}, trust.type);
  const Hlo counts =
      text.same("and", {text.compare("GT", of_weights, zero), text.compare("GT", of_step, zero)});
  return text.broadcast(e.scalar(0) * text.select(counts, trust, one), e.shape);
}

void lamb(Update& e) {
  e.slots[0] = e.slots[0] + (e.g - e.slots[0]) * e[5];
  e.slots[1] = e.slots[1] + (e.g * e.g - e.slots[1]) * e[6];
  const Hlo direction = e.slots[0] * e[3] / (sqrt(e.slots[1] * e[4]) + e[7]) + e[2] * e.w;
  const Hlo of_weights = norm_of(e.w), of_step = norm_of(direction);
  e.w = e.w - trusted_rate(e, of_weights, of_step, of_weights / of_step) * direction;
}

void lars(Update& e) {
  const Hlo of_weights = norm_of(e.w), of_step = norm_of(e.g);
  const Hlo trust = e.scalar(4) * of_weights / (of_step + e.scalar(2) * of_weights + e.scalar(5));
  const Hlo rate = trusted_rate(e, of_weights, of_step, trust);
  e.slots[0] = e[3] * e.slots[0] + rate * (e.g + e[2] * e.w);
  e.w = e.w - e.slots[0];
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
      return ftrl;
    case DeviceRuleId::kLamb:
      return lamb;
    case DeviceRuleId::kLars:
      return lars;
  }
  return nullptr;
}

}  // namespace

std::vector<Hlo> emit_update(const DeviceRule& rule, std::span<const Hlo> values,
                             const Hlo& gradient, const Hlo& constants) {
  const Rule apply = rule_of(rule.id);
  TUTTI_CHECK(apply, "emit_update: no such rule: ", static_cast<int>(rule.id));
  Update update(rule, values, gradient, constants);
  // Whether weights decay is part of the program: most variables have none.
  const bool has_own_decay = rule.id == DeviceRuleId::kLamb || rule.id == DeviceRuleId::kLars;
  if (!has_own_decay && update.number(DeviceRule::kWeightDecay) != 0.0) {
    update.w = update.w - update.w * update[2] * update.rate();
  }
  apply(update);
  return update.result();
}

}  // namespace tutti::internal
