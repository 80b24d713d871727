// How one weight changes, given its gradient: the part of an optimizer that knows no variable and
// no strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/tensor/dtype.h"

namespace tutti {

class Json;
struct DeviceRule;

/// What an update uses besides the elements. `iteration` counts updates from 0: the first update
/// sees 0.
struct UpdateScalars {
  double learning_rate = 0.0;
  std::int64_t iteration = 0;
  double gradient_scale =
      1.0;  // each gradient element is multiplied by this first (clipping, loss scaling)
  double weight_decay = 0.0;    // of this variable
  double weight_norm = 0.0;     // for rules with uses_norms(), in apply(): of the whole variable
  double direction_norm = 0.0;  // ... and of what direct() wrote
  /// In a captured step: where the scalars of the step that is being replayed will stand (but
  /// weight_decay, which does not change). nullptr: nothing is captured.
  const UpdateScalars* live = nullptr;
};

/// Equal-length runs of elements of one variable, its slots and its gradient. All of type `dtype`
/// (float32 or float64).
struct UpdateArgs {
  DType dtype = DType::kFloat32;
  std::size_t count = 0;
  void* weights_data = nullptr;
  std::span<void* const> slots_data;  // in the order of UpdateRule::slots()
  const void* gradient_data = nullptr;
  UpdateScalars scalars;

  template <class T>
  std::span<T> weights() const {
    return {static_cast<T*>(weights_data), count};
  }
  template <class T>
  std::span<T> slot(std::size_t index) const {
    return {static_cast<T*>(slots_data[index]), count};
  }
  template <class T>
  std::span<const T> gradient() const {
    return {static_cast<const T*>(gradient_data), count};
  }
};

/// A slot: one more tensor of the variable's shape that the rule keeps, with its initial value.
struct SlotSpec {
  std::string name;
  double initial_value = 0.0;
};

/// How one weight changes: slots and one pure elementwise function. Any partition of the elements
/// gives the same bits. Immutable; threads: any, at once.
class UpdateRule {
 public:
  UpdateRule() = default;
  UpdateRule(const UpdateRule&) {}
  UpdateRule& operator=(const UpdateRule&) {
    number_ = 0;
    return *this;
  }
  virtual ~UpdateRule() = default;
  /// Unlike that of any other rule that this process ever had: what is made of a rule may be kept
  /// under it.
  std::uint64_t number() const;
  /// "sgd", "adam": stands in checkpoints and error messages.
  virtual std::string_view name() const = 0;
  virtual std::vector<SlotSpec> slots() const = 0;
  virtual void apply(const UpdateArgs& args) const = 0;
  /// Returns the formula of this library that the rule is, with the numbers of this step (their
  /// order: tensor/cpu/update_rules.h); nothing for a rule that GPUs and XLA do not know.
  virtual std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const;
  /// Whether an element with gradient 0 stays as it is, slots included: then a sparse gradient
  /// touches its rows alone.
  virtual bool skips_zero_gradient() const { return false; }
  /// Whether scalars.weight_decay is part of the rule; otherwise the optimizer decays weights
  /// before it.
  virtual bool decays_weights() const { return false; }

  /// Whether a step depends on norms of the whole variable (trust ratios). Then direct() is called
  /// for all elements, norms of weights and directions are computed along the canonical order
  /// (sum_of_squares.h), and apply() gets them in its scalars and the direction as its gradient,
  /// with gradient_scale 1.
  virtual bool uses_norms() const { return false; }
  /// First pass of a rule with norms, elementwise like apply(): updates slots, leaves the weights
  /// and writes the unscaled step of each element to `direction`.
  virtual void direct(const UpdateArgs& args, void* direction) const {
    (void)args, (void)direction;
    fail(ErrorCode::kInternal, name(), ": uses norms and has no direct()");
  }

  /// The rule as a value that travels: {"rule": its name in the registry of
  /// tutti/optimizer/update_rule_spec.h, then its numbers}. Rules that do not say it stay in this
  /// process: the default throws kUnimplemented naming the rule.
  virtual Json describe() const;

 private:
  mutable std::atomic<std::uint64_t> number_{0};  // 0: nobody has asked for it
};

}  // namespace tutti
