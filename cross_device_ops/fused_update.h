// A step of an optimizer, to be done where gradients are summed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/update_rule.h"

namespace tutti {

/// What Communicator::all_reduce_and_update changes: weights and slots that are equal on all ranks
/// before and after. float32 or float64, the gradients' type.
struct FusedUpdate {
  const UpdateRule* rule = nullptr;        // one without norms
  UpdateScalars scalars = {};              // equal on all ranks
  std::span<const Elements> weights = {};  // one per gradient, of its length
  /// [slot][gradient], in the order of rule->slots().
  std::span<const std::span<const Elements>> slots = {};
};

}  // namespace tutti
