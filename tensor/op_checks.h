// Checks that public operations share, the words of their errors, and sliding windows. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tutti/core/source_location.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

// Checks that public operations share, and the words of their errors. Internal.

/// `where`; where that is a line of the library itself, the line of the program for which it works
/// (CallSite); without a line where nobody said which.
SourceLocation callers_line(const SourceLocation& where);
/// "add at train.cc:41": how every error of an operation begins; "add" where the caller's line is
/// not known.
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

/// The elements of axis `axis` of a tensor of this shape that an index in `x[...]` names. Throws
/// kInvalidArgument for a number that is out of range.
struct AxisPart {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
AxisPart part_of_axis(const Index& index, const Shape& shape, int axis);
/// Tensor::operator[].
Tensor part_of(const Operand& x, std::span<const Index> indices);

/// One call with one input of x's dtype and shape.
Tensor dispatch_unary(OpId op, const Operand& x, Attributes attributes = {});

// Sliding windows over NHWC images: output sizes and explicit padding. Internal.

struct WindowAxis {
  std::int64_t output = 0;
  std::int64_t pad_before = 0;
  std::int64_t pad_after = 0;
};

/// tf's rule. SAME gives ceil(input / stride) and puts the odd padding behind; VALID gives
/// ceil((input - window + 1) / stride). Throws naming `op` when that is negative: the window is
/// larger than the image.
WindowAxis window_axis(OpId op, const SourceLocation& where, std::int64_t input,
                       std::int64_t window, std::int64_t stride, Padding padding);

/// The length of a window of `taps` elements that stand `dilation` apart.
inline std::int64_t dilated(std::int64_t taps, std::int64_t dilation) {
  return (taps - 1) * dilation + 1;
}

/// Positions of a window on an axis with explicit padding.
inline std::int64_t window_positions(std::int64_t input, std::int64_t pad_before,
                                     std::int64_t pad_after, std::int64_t window,
                                     std::int64_t stride) {
  return (input + pad_before + pad_after - window + stride) / stride;
}

/// x must be [batch, height, width, channels], window and strides positive.
void check_window(OpId op, const Operand& x, std::int64_t window_h, std::int64_t window_w,
                  std::int64_t stride_h, std::int64_t stride_w);

}  // namespace tutti::internal
