// Formulas of the optimizers' update rules, shared by CPU loops, GPU kernels and XLA programs.
// SPDX-License-Identifier: Apache-2.0
//
// Constants of a DeviceRule, by index:
//   all rules        0 learning rate, 1 gradient scale, 2 weight decay (w -= w * decay * rate
//                    first, where the rule does not use norms)
//   sgd              3 momentum, 4 nesterov (0 or 1)
//   adam             3 alpha, 4 1 - beta_1, 5 1 - beta_2, 6 epsilon; slot 2: amsgrad
//   adagrad          3 epsilon
//   adadelta         3 rho, 4 1 - rho, 5 epsilon
//   rmsprop          3 rho, 4 1 - rho, 5 epsilon, 6 momentum, 7 centered (0 or 1)
//   ftrl             3 l1, 4 l2, 5 shrinkage, 6 exponent (0.5 takes a square root)
//   lion             3 beta_1, 4 1 - beta_1, 5 beta_2, 6 1 - beta_2
//   nadam            3 share of the mean, 4 share of the gradient, 5 factor of the square,
//                    6 1 - beta_1, 7 1 - beta_2, 8 epsilon
//   lamb             3 factor of the mean, 4 factor of the square, 5 1 - beta_1, 6 1 - beta_2,
//                    7 epsilon; 2 is part of the direction
//   lars             3 momentum, 4 trust coefficient, 5 epsilon; 2 is part of the step
//   moving average   3 share of the old, 4 share of the new, 5 overwrites the weight (0 or 1)
//   weight decay     no further constants
//
// A formula is a template of C, which has constants c[i] and options c.has(option), and of E, a
// Weight<X>. X is float or double, or Hlo, whose arithmetic adds operations to an XLA program
// (tensor/xla/hlo.h). Options are computed from the constants, so that a captured step can change
// them.
#pragma once

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/device_backend.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// One element of a variable, which a rule reads, changes and writes. `g` is already scaled.
template <class X>
struct Weight {
  X w, g;
  X slots[DeviceUpdateItem::kMaxSlots];
};

/// Base class of update rules. A rule with `kUsesNorms` has no apply(): prepare() changes the
/// slots, direction() returns the direction of one element, trust() returns the trust ratio for the
/// norms of all weights and directions, and step() changes the weight. Only one of prepare() and
/// step() changes slots.
template <int slots>
struct UpdateFormula {
  static constexpr int kSlots = slots;        // maximum number of slots
  static constexpr unsigned kNumOptions = 0;  // number of bits in options()
  static constexpr bool kUsesNorms = false, kReadsGradient = true;
  /// Returns a bit mask of the options, derived from the constants and the number of slots.
  static constexpr unsigned options(const double* /*constants*/, int /*num_slots*/) { return 0; }
  static constexpr int num_slots(unsigned /*options*/) { return slots; }
};

struct SgdUpdate : UpdateFormula<1> {
  static constexpr unsigned kMomentum = 1, kNesterov = 2, kNumOptions = 2;
  static constexpr unsigned options(const double* c, int num_slots) {
    return (num_slots > 0 ? kMomentum : 0) | (c[4] != 0.0 ? kNesterov : 0);
  }
  static constexpr int num_slots(unsigned options) { return (options & kMomentum) != 0 ? 1 : 0; }
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    const auto step = c[0] * e.g;
    if (!c.has(kMomentum)) {
      e.w -= step;
      return;
    }
    const auto m = c[3];
    e.slots[0] = m * e.slots[0] - step;
    e.w += c.has(kNesterov) ? m * e.slots[0] - step : e.slots[0];
  }
};

struct AdamUpdate : UpdateFormula<3> {
  static constexpr unsigned kAmsgrad = 1, kNumOptions = 1;
  static constexpr unsigned options(const double*, int num_slots) { return num_slots > 2; }
  static constexpr int num_slots(unsigned options) { return options == kAmsgrad ? 3 : 2; }
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[4];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[5];
    auto second = e.slots[1];
    if (c.has(kAmsgrad)) {
      second = e.slots[2] = choose(e.slots[2] < e.slots[1], e.slots[1], e.slots[2]);
    }
    e.w -= e.slots[0] * c[3] / (sqrt(second) + c[6]);
  }
};

struct AdagradUpdate : UpdateFormula<1> {
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    e.slots[0] += e.g * e.g;
    e.w -= c[0] * e.g / sqrt(e.slots[0] + c[3]);
  }
};

struct AdadeltaUpdate : UpdateFormula<2> {
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    const auto rho = c[3], rest = c[4], epsilon = c[5];
    e.slots[0] = rho * e.slots[0] + rest * (e.g * e.g);
    const auto delta = -(sqrt(e.slots[1] + epsilon) * e.g / sqrt(e.slots[0] + epsilon));
    e.slots[1] = rho * e.slots[1] + rest * (delta * delta);
    e.w += c[0] * delta;
  }
};

// Slots: velocity, then momentum if it is not 0, then the average gradient if centered.
struct RmspropUpdate : UpdateFormula<3> {
  static constexpr unsigned kMomentum = 1, kCentered = 2, kNumOptions = 2;
  static constexpr unsigned options(const double* c, int) {
    return (c[6] > 0.0 ? kMomentum : 0) | (c[7] != 0.0 ? kCentered : 0);
  }
  static constexpr int num_slots(unsigned options) {
    return 1 + ((options & kMomentum) != 0 ? 1 : 0) + ((options & kCentered) != 0 ? 1 : 0);
  }
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    const auto rho = c[3], rest = c[4];
    e.slots[0] = rho * e.slots[0] + rest * (e.g * e.g);
    auto square = e.slots[0];
    if (c.has(kCentered)) {
      // Selects by value: a reference to one of the two slots would keep both out of registers.
      const auto average = rho * (c.has(kMomentum) ? e.slots[2] : e.slots[1]) + rest * e.g;
      e.slots[1] = c.has(kMomentum) ? e.slots[1] : average;
      e.slots[2] = c.has(kMomentum) ? average : e.slots[2];
      square = e.slots[0] - average * average;
    }
    auto step = c[0] * e.g / sqrt(square + c[5]);
    if (c.has(kMomentum)) step = e.slots[1] = c[6] * e.slots[1] + step;
    e.w -= step;
  }
};

struct FtrlUpdate : UpdateFormula<2> {
  static constexpr unsigned kSquareRoot = 1, kNumOptions = 1;
  static constexpr unsigned options(const double* c, int) { return c[6] == 0.5; }
  template <class C, class X>
  static constexpr X raised(const C& c, const X& value) {
    return c.has(kSquareRoot) ? sqrt(value) : pow(value, c[6]);
  }
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    const auto rate = c[0], l1 = c[3];
    const auto sum = e.slots[0] + e.g * e.g, power = raised(c, sum);
    e.slots[1] += e.g + c[5] * e.w - (power - raised(c, e.slots[0])) / rate * e.w;
    const auto linear = e.slots[1], above = choose(linear < -l1, -l1, linear);
    const auto clipped = choose(l1 < above, l1, above);
    e.w = (clipped - linear) / (power / rate + c[4]);
    e.slots[0] = sum;
  }
};

struct LionUpdate : UpdateFormula<1> {
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    e.w -= c[0] * Sign{}(e.slots[0] * c[3] + e.g * c[4]);
    e.slots[0] = e.slots[0] * c[5] + e.g * c[6];
  }
};

struct NadamUpdate : UpdateFormula<2> {
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[6];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[7];
    const auto mean = e.slots[0] * c[3] + e.g * c[4];
    e.w -= mean * c[0] / (sqrt(e.slots[1] * c[5]) + c[8]);
  }
};

struct LambUpdate : UpdateFormula<2> {
  static constexpr bool kUsesNorms = true, kStepChangesSlots = false;
  template <class C, class E>
  static constexpr void prepare(const C& c, E& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[5];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[6];
  }
  template <class C, class E>
  static constexpr auto direction(const C& c, const E& e) {
    return e.slots[0] * c[3] / (sqrt(e.slots[1] * c[4]) + c[7]) + c[2] * e.w;
  }
  template <class C, class X>
  static constexpr X trust(const C&, const X& of_weights, const X& of_directions) {
    return of_weights / of_directions;
  }
  template <class C, class X, class E>
  static constexpr void step(const C&, const X& rate, const X& direction, E& e) {
    e.w -= rate * direction;
  }
};

struct LarsUpdate : UpdateFormula<1> {
  static constexpr bool kUsesNorms = true, kStepChangesSlots = true;
  template <class C, class E>
  static constexpr void prepare(const C&, E&) {}
  template <class C, class E>
  static constexpr auto direction(const C&, const E& e) {
    return e.g;
  }
  template <class C, class X>
  static constexpr X trust(const C& c, const X& of_weights, const X& of_directions) {
    return c[4] * of_weights / (of_directions + c[2] * of_weights + c[5]);
  }
  template <class C, class X, class E>
  static constexpr void step(const C& c, const X& rate, const X& direction, E& e) {
    e.slots[0] = c[3] * e.slots[0] + rate * (direction + c[2] * e.w);
    e.w -= e.slots[0];
  }
};

struct MovingAverageUpdate : UpdateFormula<1> {
  static constexpr bool kReadsGradient = false;
  static constexpr unsigned kOverwrites = 1, kNumOptions = 1;
  static constexpr unsigned options(const double* c, int) { return c[5] != 0.0; }
  template <class C, class E>
  static constexpr void apply(const C& c, E& e) {
    e.slots[0] = c[3] * e.slots[0] + c[4] * e.w;
    if (c.has(kOverwrites)) e.w = e.slots[0];
  }
};

struct WeightDecayUpdate : UpdateFormula<0> {
  static constexpr bool kReadsGradient = false;
  template <class C, class E>
  static constexpr void apply(const C&, E&) {}
};

/// Applies weight decay before the formula of a rule that does not use norms.
template <class C, class E>
constexpr void decay_weight(const C& c, E& e) {
  e.w -= e.w * c[DeviceRule::kWeightDecay] * c[0];
}

/// Returns the learning rate times the trust ratio, which is 1 if a norm is 0.
template <class Rule, class C, class X>
constexpr X trusted_rate(const C& c, const X& of_weights, const X& of_directions) {
  return c[0] * choose((of_weights > X(0)) & (of_directions > X(0)),
                       Rule::trust(c, of_weights, of_directions), X(1));
}

/// Calls visitor.template operator()<Formula>() with the formula of a rule.
template <class Visitor>
void visit_update_formula(DeviceRuleId id, const Visitor& visitor) {
  switch (id) {
    case DeviceRuleId::kSgd:
      return visitor.template operator()<SgdUpdate>();
    case DeviceRuleId::kAdam:
      return visitor.template operator()<AdamUpdate>();
    case DeviceRuleId::kAdagrad:
      return visitor.template operator()<AdagradUpdate>();
    case DeviceRuleId::kAdadelta:
      return visitor.template operator()<AdadeltaUpdate>();
    case DeviceRuleId::kRmsprop:
      return visitor.template operator()<RmspropUpdate>();
    case DeviceRuleId::kFtrl:
      return visitor.template operator()<FtrlUpdate>();
    case DeviceRuleId::kLion:
      return visitor.template operator()<LionUpdate>();
    case DeviceRuleId::kNadam:
      return visitor.template operator()<NadamUpdate>();
    case DeviceRuleId::kLamb:
      return visitor.template operator()<LambUpdate>();
    case DeviceRuleId::kLars:
      return visitor.template operator()<LarsUpdate>();
    case DeviceRuleId::kMovingAverage:
      return visitor.template operator()<MovingAverageUpdate>();
    case DeviceRuleId::kWeightDecay:
      return visitor.template operator()<WeightDecayUpdate>();
  }
  fail(ErrorCode::kInternal, "visit_update_formula: expected a DeviceRuleId, got ",
       static_cast<int>(id));
}

/// Applies a rule to elements in host memory. If `direction` is given, a rule that uses norms runs
/// its first pass, which writes `direction`; otherwise it runs its second pass. Errors name `who`.
void update_on_host(std::string_view who, const DeviceRule& rule, const UpdateArgs& args,
                    void* direction);

}  // namespace tutti::internal
