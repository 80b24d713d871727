// Sliding windows over NHWC images: output sizes and explicit padding.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/window.h"

#include <algorithm>

namespace tutti::internal {

WindowAxis window_axis(OpId op, const SourceLocation& where, std::int64_t input,
                       std::int64_t window, std::int64_t stride, Padding padding) {
  if (padding == Padding::kSame) {
    const std::int64_t output = (input + stride - 1) / stride;
    const std::int64_t pad = std::max<std::int64_t>(0, (output - 1) * stride + window - input);
    return {output, pad / 2, pad - pad / 2};
  }
  if (input - window + stride < 0) {
    fail_op(op, where, "the window does not fit into the image; expected at most ", input,
            ", got a window of ", window, "; try Padding::kSame");
  }
  return {window_positions(input, 0, 0, window, stride), 0, 0};
}

void check_window(OpId op, const Operand& x, std::int64_t window_h, std::int64_t window_w,
                  std::int64_t stride_h, std::int64_t stride_w) {
  defined(op, x);
  require_floating(op, x);
  if (x.shape().rank() != 4) {
    fail_op(op, x.where, "expected an input [batch, height, width, channels], got ", x.shape());
  }
  if (window_h < 1 || window_w < 1 || stride_h < 1 || stride_w < 1) {
    fail_op(op, x.where, "expected a window and strides of 1 or more, got window ", window_h, " x ",
            window_w, " and strides ", stride_h, " x ", stride_w);
  }
}

}  // namespace tutti::internal
