// Checks that a call of an operation is one that the functions of tensor/ops make.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Kernels trust their calls. Throws kInvalidArgument, naming the operation, unless attributes and
/// outputs fit the inputs: for calls that come from another process.
void check_call(const OpCall& call);

}  // namespace tutti::internal
