// Weight updates from gradients: the part of an optimizer that does not depend on variables or
// strategies.
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

/// Numbers that an update uses in addition to the elements. `iteration` counts updates from 0.
struct UpdateScalars {
  double learning_rate = 0.0;
  std::int64_t iteration = 0;
  double gradient_scale = 1.0;  // factor applied first to each gradient (clipping, loss scaling)
  double weight_decay = 0.0;    // decay factor of this variable
  double weight_norm = 0.0;     // norm of the full variable; valid in apply() if uses_norms()
  double direction_norm = 0.0;  // norm of direct()'s result; valid in apply() if uses_norms()
  /// In a captured step: address of the scalars of the step being replayed; otherwise nullptr. Do
  /// not use its weight_decay, which is not this variable's; weight_decay above never changes.
  const UpdateScalars* live = nullptr;
};

/// Elements of one variable, its slots and its gradient, as ranges of equal length and of type
/// `dtype` (float32 or float64).
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

/// Slot: an additional tensor of the variable's shape that the rule maintains. All its elements
/// start as `initial_value`.
struct SlotSpec {
  std::string name;
  double initial_value = 0.0;
};

/// Rule that updates weights: a list of slots and a pure elementwise function, whose results do not
/// depend on how the elements are partitioned. Immutable. Thread-safe.
class UpdateRule {
 public:
  UpdateRule() = default;
  UpdateRule(const UpdateRule&) {}
  UpdateRule& operator=(const UpdateRule&) {
    number_ = 0;
    return *this;
  }
  virtual ~UpdateRule() = default;
  /// Returns a number that is unique among all past and present rules of this process, for use as a
  /// cache key.
  std::uint64_t number() const;
  /// Returns the name used in checkpoints and error messages, such as "sgd" or "adam".
  virtual std::string_view name() const = 0;
  virtual std::vector<SlotSpec> slots() const = 0;
  virtual void apply(const UpdateArgs& args) const = 0;
  /// Returns the rule in the form that GPUs and XLA execute, with this step's scalars (in the order
  /// defined in tensor/cpu/update_rules.h); nullopt if they cannot execute the rule.
  virtual std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const;
  /// Returns true if elements with gradient 0, and their slots, stay unchanged; a sparse gradient
  /// then updates only its rows.
  virtual bool skips_zero_gradient() const { return false; }
  /// Returns true if the rule applies scalars.weight_decay; otherwise the optimizer decays weights
  /// before it applies the rule.
  virtual bool decays_weights() const { return false; }

  /// Returns true if a step depends on norms of the full variable (trust ratios). Then direct() is
  /// called for all elements first, and the norms of weights and directions are computed in the
  /// canonical order (sum_of_squares.h). apply() receives the norms in its scalars and the
  /// direction as its gradient, with gradient_scale 1.
  virtual bool uses_norms() const { return false; }
  /// First pass of a rule that uses norms. Like apply(), it works elementwise and updates the
  /// slots, but instead of updating the weights it writes each element's unscaled step to
  /// `direction`.
  virtual void direct(const UpdateArgs& args, void* direction) const {
    (void)args, (void)direction;
    fail(ErrorCode::kInternal, name(),
         ": expected an override of direct(), because uses_norms() returns true");
  }

  /// Returns a description of the rule for other processes: {"rule": name in the registry of
  /// tutti/optimizer/update_rule_spec.h, followed by its hyperparameters}. The default throws
  /// kUnimplemented.
  virtual Json describe() const;

 private:
  mutable std::atomic<std::uint64_t> number_{0};  // 0: not assigned yet
};

}  // namespace tutti
