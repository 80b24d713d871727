// Rows of a variable, without reading the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/autograd/variable.h"

namespace tutti {

/// Rows of params [rows, ...] at indices (int32 or int64, shape [...]) -> indices.shape +
/// params.shape[1:]; a variable on parameter servers sends each row once and no other. The gradient
/// with respect to params is IndexedSlices. Throws kInvalidArgument naming an index out of range.
/// tf.nn.embedding_lookup.
Tensor embedding_lookup(const Variable& params, const Tensor& indices);

}  // namespace tutti
