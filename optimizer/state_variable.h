// A number that an optimizer keeps beside its slots.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/autograd/variable.h"

namespace tutti::internal {

/// Equal in all replicas: written with assign_replicated() while no replica reads it.
inline Variable state_variable(const Tensor& value, std::string name) {
  return Variable(value, {.name = std::move(name),
                          .trainable = false,
                          .aggregation = VariableAggregation::kOnlyFirstReplica,
                          .on_host = true});
}

}  // namespace tutti::internal
