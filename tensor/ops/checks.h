// Checks that public operations share, and the words of their errors. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/core/source_location.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/operand.h"

namespace tutti::internal {

/// "add at train.cc:41": how every error of an operation begins.
std::string who(std::string_view operation, const SourceLocation& where);
std::string who(OpId op, const SourceLocation& where);

/// Throws kInvalidArgument: who(op, where), ": ", the parts.
template <class... Parts>
[[noreturn]] void fail_op(OpId op, const SourceLocation& where, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, who(op, where), ": ", parts...);
}

/// The tensor of an operand. Throws kFailedPrecondition naming `op` when it is undefined.
const Tensor& defined(OpId op, const Operand& operand);
const Tensor& defined(OpId op, const Operand&& operand) = delete;  // the result would dangle
/// Where a value made beside `like` goes: the device scope's device, otherwise that of `like`.
Device device_beside(const Tensor& like);
/// The tensor of an operand; a plain number becomes a scalar of `like`'s dtype and device. Throws
/// kInvalidArgument when that dtype cannot hold the number. In a device scope it is made there.
Tensor number_like(OpId op, const Operand& operand, const Tensor& like);

void require_floating(OpId op, const Operand& x);
void require_dtype(OpId op, const Operand& x, DType dtype);
/// int32 or int64.
void require_index(OpId op, const Operand& x);
void require_same_dtype(OpId op, const Tensor& a, const Tensor& b, const SourceLocation& where);
/// `axis` as 0 .. rank-1, for a tensor (or a result) of `rank` axes made from x.
int checked_axis(std::string_view operation, const Operand& x, int axis, int rank);
void require_rank(OpId op, const Operand& x, int rank);

/// One call with one input of x's dtype and shape.
Tensor dispatch_unary(OpId op, const Operand& x, Attributes attributes = {});

}  // namespace tutti::internal
