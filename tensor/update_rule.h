// How one weight changes, given its gradient: the part of an optimizer that knows no variable and
// no strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/dtype.h"

namespace tutti {

/// What an update uses besides the elements. `iteration` counts updates from 0: the first update
/// sees 0.
struct UpdateScalars {
  double learning_rate = 0.0;
  std::int64_t iteration = 0;
  double gradient_scale =
      1.0;  // each gradient element is multiplied by this first (clipping, loss scaling)
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
  virtual ~UpdateRule() = default;
  /// "sgd", "adam": stands in checkpoints and error messages.
  virtual std::string_view name() const = 0;
  virtual std::vector<SlotSpec> slots() const = 0;
  virtual void apply(const UpdateArgs& args) const = 0;
  /// Whether an element with gradient 0 stays as it is, slots included: then a sparse gradient
  /// touches its rows alone.
  virtual bool skips_zero_gradient() const { return false; }
};

}  // namespace tutti
