// Elements and reductions in MPI's words.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_elements.h"

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/mpi/mpi_runtime.h"

namespace tutti::internal {
namespace {

template <ReduceOp kOp, DType kType>
void combine_for_mpi(void* in, void* in_out, int* length, MPI_Datatype*) {
  auto* const result = static_cast<std::byte*>(in_out);
  combine(kOp, kType, static_cast<const std::byte*>(in), result, result,
          static_cast<std::size_t>(*length));
}

MPI_Op commutative(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  check_mpi(MPI_Op_create(function, 1, &op), "MPI_Op_create");
  return op;
}

/// Made once, and left to MPI_Finalize.
struct OwnOps {
  MPI_Op min32 = commutative(combine_for_mpi<ReduceOp::kMin, DType::kFloat32>);
  MPI_Op max32 = commutative(combine_for_mpi<ReduceOp::kMax, DType::kFloat32>);
  MPI_Op min64 = commutative(combine_for_mpi<ReduceOp::kMin, DType::kFloat64>);
  MPI_Op max64 = commutative(combine_for_mpi<ReduceOp::kMax, DType::kFloat64>);
  MPI_Op sum8 = commutative(combine_for_mpi<ReduceOp::kSum, DType::kUInt8>);
  MPI_Op product8 = commutative(combine_for_mpi<ReduceOp::kProduct, DType::kUInt8>);
};

const OwnOps& own_ops() {
  static const OwnOps ops;
  return ops;
}

}  // namespace

MPI_Datatype mpi_number(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kUInt8:
    case DType::kBool:
      return MPI_UINT8_T;
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  fail(ErrorCode::kInternal, "mpi: has no reductions of ", dtype);
}

MPI_Datatype mpi_bytes(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

MPI_Op mpi_op(ReduceOp op, DType dtype) {
  const bool wide = dtype == DType::kFloat64;
  switch (op) {
    case ReduceOp::kSum:
      return dtype == DType::kUInt8 ? own_ops().sum8 : MPI_SUM;
    case ReduceOp::kProduct:
      return dtype == DType::kUInt8 ? own_ops().product8 : MPI_PROD;
    case ReduceOp::kMin:
      if (!is_floating(dtype)) return MPI_MIN;
      return wide ? own_ops().min64 : own_ops().min32;
    case ReduceOp::kMax:
      if (!is_floating(dtype)) return MPI_MAX;
      return wide ? own_ops().max64 : own_ops().max32;
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "mpi: MEAN is SUM and a division; the caller divides");
}

}  // namespace tutti::internal
