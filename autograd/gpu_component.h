// Writes on variables in the memory of GPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {

// Nothing here waits for the GPU. Tensors are on the device of the variable.

/// value += operand (kAdd) or value -= operand. No tape sees it.
void accumulate_on_gpu(VariableMemory& value, AssignOp op, const Tensor& operand);

/// Rows of the value, position after position; indices out of range are left out. The slices may be
/// on any device.
void scatter_on_gpu(VariableMemory& value, ScatterOp op, const IndexedSlices& slices);

/// Applies the rule by its kernel: `values` are the weights and then the rule's slots. Returns
/// false when the rule has no kernel for these weights: then nothing was done.
bool update_on_gpu(std::span<VariableMemory* const> values, const UpdateRule& rule,
                   const Tensor& gradient, const UpdateScalars& scalars);

/// Once for each rule.
void warn_of_update_by_host(const UpdateRule& rule);

}  // namespace tutti::internal
