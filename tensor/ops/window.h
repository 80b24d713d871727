// Sliding windows over NHWC images: output sizes and explicit padding. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/ops/checks.h"

namespace tutti::internal {

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
