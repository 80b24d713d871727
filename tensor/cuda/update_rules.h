// How one weight changes: the rules of optimizer/ as kernels know them.
// SPDX-License-Identifier: Apache-2.0
//
// Constants of a DeviceRule, by their numbers:
//   all rules        0 learning rate, 1 gradient scale, 2 weight decay (w -= w * decay * rate
//                    first, where the rule does not say otherwise)
//   sgd              3 momentum, 4 nesterov (0 or 1)
//   adam             3 alpha, 4 1 - beta_1, 5 1 - beta_2, 6 epsilon; slot 2: amsgrad
//   adamax           3 1 - beta_1, 4 beta_2, 5 epsilon, 6 1 - beta_1^t
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
//   weight decay     none of its own
// Slots are in the order of UpdateRule::slots(). Flags are constants, so that a captured step can
// change them. Formulas and their order are those of UpdateRule::apply().
#pragma once

#include <cmath>

#include "tensor/device_backend.h"

namespace tutti::cuda {

/// One element of a variable: read, changed by a rule, written.
template <class T>
struct Weight {
  T w, g;  // g is scaled
  T slots[DeviceUpdateItem::kMaxSlots];
  unsigned present;  // bit i: there is slot i
};

/// The constants as a parameter of kernels.
struct GivenConstants {
  explicit GivenConstants(const DeviceRule& rule) {
    for (std::size_t i = 0; i < DeviceRule::kNumConstants; ++i) values[i] = rule.constants[i];
  }
  double values[DeviceRule::kNumConstants];
};

/// The constants as numbers.
template <class T>
struct RuleConstants {
  __device__ explicit RuleConstants(const double* from) {
    for (std::size_t i = 0; i < DeviceRule::kNumConstants; ++i) values[i] = static_cast<T>(from[i]);
  }
  __device__ T operator[](int i) const { return values[i]; }
  __device__ T rate() const { return values[0]; }
  T values[DeviceRule::kNumConstants];
};

struct SgdUpdate {
  static constexpr int kSlots = 1;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    const T step = c.rate() * e.g;
    if ((e.present & 1u) == 0) {
      e.w -= step;
      return;
    }
    const T m = c[3];
    e.slots[0] = m * e.slots[0] - step;
    e.w += c[4] != T{0} ? m * e.slots[0] - step : e.slots[0];
  }
};

struct AdamUpdate {
  static constexpr int kSlots = 3;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[4];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[5];
    T second = e.slots[1];
    if ((e.present & 4u) != 0) {
      e.slots[2] = e.slots[2] < e.slots[1] ? e.slots[1] : e.slots[2];
      second = e.slots[2];
    }
    e.w -= e.slots[0] * c[3] / (std::sqrt(second) + c[6]);
  }
};

// Kingma and Ba, section 7.1; Keras's Adamax.
struct AdaMaxUpdate {
  static constexpr int kSlots = 2;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[3];
    const T decayed = c[4] * e.slots[1], size = std::abs(e.g);
    e.slots[1] = decayed < size ? size : decayed;
    e.w -= c.rate() * e.slots[0] / (c[6] * (e.slots[1] + c[5]));
  }
};

struct AdagradUpdate {
  static constexpr int kSlots = 1;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] += e.g * e.g;
    e.w -= c.rate() * e.g / std::sqrt(e.slots[0] + c[3]);
  }
};

struct AdadeltaUpdate {
  static constexpr int kSlots = 2;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    const T rho = c[3], rest = c[4], epsilon = c[5];
    e.slots[0] = rho * e.slots[0] + rest * (e.g * e.g);
    const T delta = -(std::sqrt(e.slots[1] + epsilon) * e.g / std::sqrt(e.slots[0] + epsilon));
    e.slots[1] = rho * e.slots[1] + rest * (delta * delta);
    e.w += c.rate() * delta;
  }
};

// Slots: velocity, then momentum if it is not 0, then the average gradient if centered.
struct RmspropUpdate {
  static constexpr int kSlots = 3;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    const T rho = c[3], rest = c[4];
    const bool has_momentum = c[6] > T{0}, is_centered = c[7] != T{0};
    e.slots[0] = rho * e.slots[0] + rest * (e.g * e.g);
    T square = e.slots[0];
    if (is_centered) {
      // Chosen by value: a reference to one of two slots would keep them out of registers.
      const T average = rho * (has_momentum ? e.slots[2] : e.slots[1]) + rest * e.g;
      e.slots[1] = has_momentum ? e.slots[1] : average;
      e.slots[2] = has_momentum ? average : e.slots[2];
      square = e.slots[0] - average * average;
    }
    T step = c.rate() * e.g / std::sqrt(square + c[5]);
    if (has_momentum) step = e.slots[1] = c[6] * e.slots[1] + step;
    e.w -= step;
  }
};

struct FtrlUpdate {
  static constexpr int kSlots = 2;
  template <class T>
  __device__ static T raised(T value, T exponent) {
    return exponent == T(0.5) ? std::sqrt(value) : std::pow(value, exponent);
  }
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    const T rate = c.rate(), l1 = c[3], l2 = c[4], shrinkage = c[5], exponent = c[6];
    const T sum = e.slots[0] + e.g * e.g, power = raised(sum, exponent);
    e.slots[1] += e.g + shrinkage * e.w - (power - raised(e.slots[0], exponent)) / rate * e.w;
    const T linear = e.slots[1];
    const T above = linear < -l1 ? -l1 : linear;
    const T clipped = l1 < above ? l1 : above;
    e.w = (clipped - linear) / (power / rate + l2);
    e.slots[0] = sum;
  }
};

struct LionUpdate {
  static constexpr int kSlots = 1;
  template <class T>
  __device__ static T sign(T value) {
    const T above = value > T(0) ? T(1) : T(0), below = value < T(0) ? T(1) : T(0);
    return value == value ? above - below : value;
  }
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.w -= c.rate() * sign(e.slots[0] * c[3] + e.g * c[4]);
    e.slots[0] = e.slots[0] * c[5] + e.g * c[6];
  }
};

struct NadamUpdate {
  static constexpr int kSlots = 2;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[6];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[7];
    const T mean = e.slots[0] * c[3] + e.g * c[4];
    e.w -= mean * c.rate() / (std::sqrt(e.slots[1] * c[5]) + c[8]);
  }
};

// Rules with norms: direct() changes slots and gives the direction of one element; after the norms
// of all weights and directions trust() gives the factor of the rate, with which apply() changes
// the weight. Only one of the two passes writes slots.
struct LambUpdate {
  static constexpr int kSlots = 2;
  static constexpr bool kDirectWritesSlots = true;
  template <class T>
  __device__ static T direction(const RuleConstants<T>& c, const Weight<T>& e) {
    return e.slots[0] * c[3] / (std::sqrt(e.slots[1] * c[4]) + c[7]) + c[2] * e.w;
  }
  template <class T>
  __device__ static T direct(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] += (e.g - e.slots[0]) * c[5];
    e.slots[1] += (e.g * e.g - e.slots[1]) * c[6];
    return direction(c, e);
  }
  __device__ static double trust(const double*, double of_weights, double of_directions) {
    return of_weights / of_directions;
  }
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, T rate, Weight<T>& e) {
    e.w -= rate * direction(c, e);
  }
};

struct LarsUpdate {
  static constexpr int kSlots = 1;
  static constexpr bool kDirectWritesSlots = false;
  template <class T>
  __device__ static T direct(const RuleConstants<T>&, const Weight<T>& e) {
    return e.g;
  }
  __device__ static double trust(const double* c, double of_weights, double of_directions) {
    return c[4] * of_weights / (of_directions + c[2] * of_weights + c[5]);
  }
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, T rate, Weight<T>& e) {
    e.slots[0] = c[3] * e.slots[0] + rate * (e.g + c[2] * e.w);
    e.w -= e.slots[0];
  }
};

struct MovingAverageUpdate {
  static constexpr int kSlots = 1;
  template <class T>
  __device__ static void apply(const RuleConstants<T>& c, Weight<T>& e) {
    e.slots[0] = c[3] * e.slots[0] + c[4] * e.w;
    if (c[5] != T{0}) e.w = e.slots[0];
  }
};

struct WeightDecayUpdate {
  static constexpr int kSlots = 0;
  template <class T>
  __device__ static void apply(const RuleConstants<T>&, Weight<T>&) {}
};

}  // namespace tutti::cuda
