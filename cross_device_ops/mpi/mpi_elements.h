// Elements and reductions in MPI's words.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// For collectives that combine: the number itself; bool is a byte of 0 or 1. Not for 16-bit types,
/// which communicators give as float32.
MPI_Datatype mpi_number(DType dtype);
/// For those that copy, at any alignment.
MPI_Datatype mpi_bytes(DType dtype);
/// SUM, PRODUCT, MIN or MAX: MPI's own, but for MIN and MAX of floating types, where MPI leaves
/// open what becomes of a NaN (here it wins), and sums of bytes, which Open MPI 4 saturates on
/// processors with AVX (here they wrap around). Needs an initialised MPI; any thread.
MPI_Op mpi_op(ReduceOp op, DType dtype);

}  // namespace tutti::internal
