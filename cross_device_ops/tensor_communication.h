// A rank's collectives on tensors: what Communicator does on memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

/// The combination of all ranks' tensors, of one shape and dtype. Shapes are compared. Errors as
/// Communicator's.
Tensor all_reduce(Communicator& communicator, ReduceOp op, const Tensor& value,
                  CallOptions options = {}, SourceLocation where = SourceLocation::current());

/// The slices of all ranks one after the other, in rank order, without removing duplicates (tf's
/// rule). SUM or MEAN, else kInvalidArgument; numbers of rows may differ.
IndexedSlices all_reduce(Communicator& communicator, ReduceOp op, const IndexedSlices& value,
                         CallOptions options = {},
                         SourceLocation where = SourceLocation::current());

/// Concatenates along the first dimension in rank order; its length may differ, the others not.
Tensor all_gather(Communicator& communicator, const Tensor& value, CallOptions options = {},
                  SourceLocation where = SourceLocation::current());

/// Rank `root`'s tensor; the others give one of the same shape and dtype.
Tensor broadcast(Communicator& communicator, const Tensor& value, int root,
                 CallOptions options = {}, SourceLocation where = SourceLocation::current());

}  // namespace tutti
