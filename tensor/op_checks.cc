// Checks shared by public operations, and sliding windows over NHWC images.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/op_checks.h"

#include <algorithm>

#include "core/call_site.h"
#include "tensor/tensor_impl.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {

// Checks shared by public operations.

namespace {

/// Returns true for this library's files, and for those of the standard library, through which this
/// library calls itself.
bool is_of_library(std::string_view file) {
  constexpr std::string_view kThis = __FILE__;
  constexpr std::string_view kRoot =
      kThis.substr(0, kThis.size() - std::string_view("tensor/op_checks.cc").size());
  if (file.find("/include/tutti/") != file.npos || file.find("/c++/") != file.npos) return true;
  if (!file.starts_with(kRoot)) return false;
  file.remove_prefix(kRoot.size());
  constexpr std::string_view kFolders[] = {"autograd", "checkpoint", "cluster",          "core",
                                           "data",     "model",      "optimizer",        "strategy",
                                           "tensor",   "testing",    "cross_device_ops", "tutti"};
  return std::ranges::count(kFolders, file.substr(0, file.find('/'))) > 0;
}

}  // namespace

SourceLocation callers_line(const SourceLocation& where) {
  if (!is_of_library(where.file_name())) return where;
  const SourceLocation site = CallSite::current();
  return is_of_library(site.file_name()) ? SourceLocation() : site;
}

std::string who(std::string_view operation, const SourceLocation& where) {
  const SourceLocation line = callers_line(where);
  return line.line() == 0 ? std::string(operation)
                          : tutti::concat(operation, " at ", to_string(line));
}

std::string who(OpId op, const SourceLocation& where) { return who(to_string(op), where); }

const Tensor& defined(OpId op, const Operand& operand) {
  if (!operand.tensor.defined()) [[unlikely]] {
    fail(ErrorCode::kFailedPrecondition, who(op, operand.where),
         ": an input is undefined (default constructed); assign a value first");
  }
  return operand.tensor;
}

Device device_beside(const Tensor& like) {
  const bool is_placed = DeviceScope::current() && DeviceScope::current()->merged().type;
  return is_placed ? current_device() : like.device();
}

Tensor number_like(OpId op, const Operand& operand, const Tensor& like) {
  if (!operand.is_number) return defined(op, operand);
  const Device device = device_beside(like);
  MutableTensor scalar({}, like.dtype(), device);
  if (like.dtype() == DType::kFloat32 && device.type == DeviceType::kCpu) {
    scalar.span<float>()[0] = static_cast<float>(operand.number);
  } else {
    try {
      fill(scalar, operand.number, "number");
    } catch (const Error& error) {
      throw error.with_context(who(op, operand.where));
    }
  }
  return scalar.freeze();
}

void require_floating(OpId op, const Operand& x) {
  if (!is_floating(defined(op, x).dtype())) [[unlikely]] {
    fail_op(op, x.where, "expected a floating-point type, got ", x.dtype(), " of shape ", x.shape(),
            "; call cast()");
  }
}

void require_dtype(OpId op, const Operand& x, DType dtype) {
  if (defined(op, x).dtype() != dtype) [[unlikely]] {
    fail_op(op, x.where, "expected ", dtype, ", got ", x.dtype(), " of shape ", x.shape(),
            "; call cast()");
  }
}

void require_index(OpId op, const Operand& x) {
  const DType dtype = defined(op, x).dtype();
  if (dtype != DType::kInt32 && dtype != DType::kInt64) [[unlikely]] {
    fail_op(op, x.where, "expected indices of int32 or int64, got ", dtype, "; call cast()");
  }
}

void require_same_dtype(OpId op, const Tensor& a, const Tensor& b, const SourceLocation& where) {
  if (a.dtype() != b.dtype()) [[unlikely]] {
    fail_op(op, where, "element types differ; expected one type, got ", a.dtype(), " of shape ",
            a.shape(), " and ", b.dtype(), " of shape ", b.shape(), "; call cast()");
  }
}

int checked_axis(std::string_view operation, const Operand& x, int axis, int rank) {
  if (axis < -rank || axis >= rank) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": axis ", axis,
         " is out of range; expected -", rank, " .. ", rank - 1, " for shape ", x.shape());
  }
  return axis < 0 ? axis + rank : axis;
}

Tensor dispatch_unary(OpId op, const Operand& x, Attributes attributes) {
  const Tensor& tensor = defined(op, x);
  return dispatch_one(
      {op, {tensor}, {{tensor.shape(), tensor.dtype()}}, std::move(attributes), x.where});
}

// Sliding windows over NHWC images: output sizes and explicit padding.

WindowAxis window_axis(OpId op, const SourceLocation& where, std::int64_t input,
                       std::int64_t window, std::int64_t stride, Padding padding) {
  if (padding == Padding::kSame) {
    const std::int64_t output = (input + stride - 1) / stride;
    const std::int64_t pad = std::max<std::int64_t>(0, (output - 1) * stride + window - input);
    return {output, pad / 2, pad - pad / 2};
  }
  if (input - window + stride < 0) {
    fail_op(op, where, "the window does not fit into the image; expected at most ", input,
            ", got a window of ", window, "; use Padding::kSame");
  }
  return {window_positions(input, 0, 0, window, stride), 0, 0};
}

void check_window(OpId op, const Operand& x, std::int64_t window_h, std::int64_t window_w,
                  std::int64_t stride_h, std::int64_t stride_w) {
  require_floating(op, x);
  if (x.shape().rank() != 4) {
    fail_op(op, x.where, "expected an input [batch, height, width, channels], got ", x.shape());
  }
  if (window_h < 1 || window_w < 1 || stride_h < 1 || stride_w < 1) {
    fail_op(op, x.where, "expected a window and strides >= 1, got window ", window_h, " x ",
            window_w, " and strides ", stride_h, " x ", stride_w);
  }
}

}  // namespace tutti::internal
