// Checks shared by public operations, error prefixes for these operations, and sliding windows.
// Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tutti/core/source_location.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

// Checks shared by the public operations, and the prefixes of their error messages.

/// Returns `where`. If `where` is a line of the library itself, returns the line of the user's
/// program that called the library (CallSite), or no line if that is not known.
SourceLocation callers_line(const SourceLocation& where);
/// Returns the prefix of an operation's error messages: "add at train.cc:41", or "add" if the line
/// is unknown.
std::string who(std::string_view operation, const SourceLocation& where);
std::string who(OpId op, const SourceLocation& where);

/// Throws kInvalidArgument with a message that consists of who(op, where), ": " and the parts.
template <class... Parts>
[[noreturn]] void fail_op(OpId op, const SourceLocation& where, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, who(op, where), ": ", parts...);
}

/// Returns the tensor of an operand. Throws kFailedPrecondition naming `op` if the tensor is
/// undefined.
const Tensor& defined(OpId op, const Operand& operand);
const Tensor& defined(OpId op, const Operand&& operand) = delete;  // the result would dangle
/// Returns the device for a value that is combined with `like`: the current scope's if it names
/// one, else that of `like`.
Device device_beside(const Tensor& like);
/// Returns the tensor of an operand; a plain number becomes a scalar of `like`'s dtype on
/// device_beside(like). Throws kInvalidArgument if that dtype cannot hold the number.
Tensor number_like(OpId op, const Operand& operand, const Tensor& like);

void require_floating(OpId op, const Operand& x);
void require_dtype(OpId op, const Operand& x, DType dtype);
/// Throws unless the type is int32 or int64.
void require_index(OpId op, const Operand& x);
void require_same_dtype(OpId op, const Tensor& a, const Tensor& b, const SourceLocation& where);
/// Returns `axis` as an index in 0 .. rank - 1; `rank` is the rank of x or of a tensor computed
/// from x.
int checked_axis(std::string_view operation, const Operand& x, int axis, int rank);

/// Elements of one axis that an index in `x[...]` selects.
struct AxisPart {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
/// Returns the elements of `axis` that `index` selects. Throws kInvalidArgument for a number that
/// is out of range.
AxisPart part_of_axis(const Index& index, const Shape& shape, int axis);
/// Implements Tensor::operator[].
Tensor part_of(const Operand& x, std::span<const Index> indices);

/// Dispatches a call with one input and an output of the same dtype and shape.
Tensor dispatch_unary(OpId op, const Operand& x, Attributes attributes = {});

// Sliding windows over NHWC images: output sizes and explicit padding.

struct WindowAxis {
  std::int64_t output = 0;
  std::int64_t pad_before = 0;
  std::int64_t pad_after = 0;
};

/// Returns the output size and padding by tf's rule. SAME gives ceil(input / stride) and puts the
/// odd element of padding at the end; VALID gives ceil((input - window + 1) / stride). Throws,
/// naming `op`, if the size would be negative because the window is larger than the image.
WindowAxis window_axis(OpId op, const SourceLocation& where, std::int64_t input,
                       std::int64_t window, std::int64_t stride, Padding padding);

/// Returns the length of a window of `taps` elements that are `dilation` apart.
inline std::int64_t dilated(std::int64_t taps, std::int64_t dilation) {
  return (taps - 1) * dilation + 1;
}

/// Returns the number of window positions along an axis with explicit padding.
inline std::int64_t window_positions(std::int64_t input, std::int64_t pad_before,
                                     std::int64_t pad_after, std::int64_t window,
                                     std::int64_t stride) {
  return (input + pad_before + pad_after - window + stride) / stride;
}

/// Throws unless x is [batch, height, width, channels], and the window and the strides are
/// positive.
void check_window(OpId op, const Operand& x, std::int64_t window_h, std::int64_t window_w,
                  std::int64_t stride_h, std::int64_t stride_w);

}  // namespace tutti::internal
