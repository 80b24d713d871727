// Checks operation calls that come from another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Throws kInvalidArgument naming the operation unless its attributes and outputs match its inputs.
/// Kernels do not check their arguments, so calls from another process must be checked.
void check_call(const OpCall& call);

}  // namespace tutti::internal
