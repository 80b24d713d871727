// Convolution and its gradients: as matrix products where possible, otherwise with cuDNN.
// SPDX-License-Identifier: Apache-2.0

#include "tensor/cuda/convolution_plans.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/matrix_product.h"

namespace tutti::cuda {
namespace {

/// Shapes of one convolution: x and y NHWC, filter HWIO.
struct Shapes {
  Shape x, filter, y;
};

/// Returns true if the convolution is a matrix product over channels: one pixel per filter, stride
/// 1, no padding and one group.
bool is_product(const Shapes& s, const Conv2dAttributes& a) {
  return s.filter[0] == 1 && s.filter[1] == 1 && a.groups == 1 && a.stride_h == 1 &&
         a.stride_w == 1 && a.pad_top == 0 && a.pad_bottom == 0 && a.pad_left == 0 &&
         a.pad_right == 0;
}

/// Returns the product [pixels, in] x [in, out] -> [pixels, out], or one of its gradients.
MatrixProduct product_of(OpId op, const Shapes& s, DType dtype) {
  const std::int64_t pixels = s.x[0] * s.x[1] * s.x[2], in = s.filter[2], out = s.filter[3];
  MatrixProduct p;
  p.dtype = dtype;
  p.m = op == OpId::kConv2dBackwardFilter ? in : pixels;
  p.n = op == OpId::kConv2dBackwardInput ? in : out;
  p.k = op == OpId::kConv2d ? in : op == OpId::kConv2dBackwardInput ? out : pixels;
  p.transpose_a = op == OpId::kConv2dBackwardFilter;  // x' dy
  p.transpose_b = op == OpId::kConv2dBackwardInput;   // dy filter'
  return p;
}

std::array<std::int64_t, 4> dims(const Shape& s) { return {s[0], s[1], s[2], s[3]}; }

/// Runs cuDNN on x and y in tutti's layout, and on a filter in OHWI.
void run_on_cudnn(OpId op, const Shapes& s, const ConvolutionData& data, const KernelCall& call) {
  ConvolutionProblem problem;
  problem.op = op;
  problem.dtype = call.inputs[0].dtype;
  problem.x = dims(s.x);
  problem.filter = {s.filter[3], s.filter[0], s.filter[1], s.filter[2]};
  problem.y = dims(s.y);
  problem.attributes = call.attributes_as<Conv2dAttributes>();
  const auto alignment = [](const void* pointer) {  // no engine requires more than 16 bytes
    return static_cast<std::int64_t>(alignment_of(pointer, 16));
  };
  problem.x_alignment = alignment(data.x);
  problem.filter_alignment = alignment(data.filter);
  problem.y_alignment = alignment(data.y);
  call.libraries.convolution_plans().run(problem, data, call);
}

/// Returns the number of rows of the filter, viewed as a matrix [height * width * in, out].
std::int64_t rows_of(const Shape& filter) { return filter[0] * filter[1] * filter[2]; }

/// Converts the filter to OHWI in the workspace, unless the layouts are equal, and returns it.
const void* filter_for_cudnn(const DeviceTensor& filter, const KernelCall& call) {
  const std::int64_t rows = rows_of(filter.shape), out = filter.shape[3];
  if (rows == 1 || out == 1) return filter.data;
  void* const copy = call.workspace.allocate(static_cast<std::size_t>(filter.shape.num_elements()) *
                                             size_of(filter.dtype));
  transpose_matrix(filter.dtype, filter.data, copy, rows, out, call.stream);
  return copy;
}

bool is_empty(const DeviceTensor& tensor) { return tensor.shape.num_elements() == 0; }

void conv2d(const KernelCall& call) {
  const auto& attributes = call.attributes_as<Conv2dAttributes>();
  const DeviceTensor &x = call.inputs[0], &filter = call.inputs[1], &y = call.outputs[0];
  const void* const bias = call.inputs.size() > 2 ? call.inputs[2].data : nullptr;
  const Shapes shapes{x.shape, filter.shape, y.shape};
  if (is_empty(y)) return;
  if (is_empty(x) || is_empty(filter)) {
    fill(y, 0.0, call.stream);
  } else if (is_product(shapes, attributes)) {
    MatrixProduct product = product_of(OpId::kConv2d, shapes, x.dtype);
    product.a = x.data;
    product.b = filter.data;
    product.c = y.data;
    product.bias = bias;
    return multiply(product, attributes.activation, call);
  } else {
    run_on_cudnn(OpId::kConv2d, shapes, {x.data, filter_for_cudnn(filter, call), y.data}, call);
  }
  add_bias_and_activate(y, bias, attributes.activation, call.stream);
}

void backward_input(const KernelCall& call) {
  const DeviceTensor &dy = call.inputs[0], &filter = call.inputs[1], &dx = call.outputs[0];
  const Shapes shapes{dx.shape, filter.shape, dy.shape};
  if (is_empty(dx)) return;
  if (is_empty(dy) || is_empty(filter)) {
    fill(dx, 0.0, call.stream);
  } else if (is_product(shapes, call.attributes_as<Conv2dAttributes>())) {
    MatrixProduct product = product_of(OpId::kConv2dBackwardInput, shapes, dy.dtype);
    product.a = dy.data;
    product.b = filter.data;
    product.c = dx.data;
    multiply(product, FusedActivation::kNone, call);
  } else {
    run_on_cudnn(OpId::kConv2dBackwardInput, shapes,
                 {dx.data, filter_for_cudnn(filter, call), dy.data}, call);
  }
}

/// Computes cuDNN's gradient (OHWI) in the workspace and transposes it into tutti's filter layout.
void backward_filter_on_cudnn(const Shapes& shapes, const KernelCall& call) {
  const DeviceTensor &x = call.inputs[0], &dy = call.inputs[1], &df = call.outputs[0];
  const std::int64_t rows = rows_of(df.shape), out = df.shape[3];
  const bool same_layout = rows == 1 || out == 1;
  void* const gradient =
      same_layout ? df.data
                  : call.workspace.allocate(static_cast<std::size_t>(df.shape.num_elements()) *
                                            size_of(df.dtype));
  run_on_cudnn(OpId::kConv2dBackwardFilter, shapes, {x.data, gradient, dy.data}, call);
  if (!same_layout) transpose_matrix(df.dtype, gradient, df.data, out, rows, call.stream);
}

void backward_filter(const KernelCall& call) {
  const DeviceTensor &x = call.inputs[0], &dy = call.inputs[1], &df = call.outputs[0];
  const Shapes shapes{x.shape, df.shape, dy.shape};
  if (is_empty(df)) return;
  if (is_empty(x) || is_empty(dy)) {
    fill(df, 0.0, call.stream);
  } else if (is_product(shapes, call.attributes_as<Conv2dAttributes>())) {
    MatrixProduct product = product_of(OpId::kConv2dBackwardFilter, shapes, x.dtype);
    product.a = x.data;
    product.b = dy.data;
    product.c = df.data;
    multiply(product, FusedActivation::kNone, call);
  } else {
    backward_filter_on_cudnn(shapes, call);
  }
}

}  // namespace

void register_convolution_kernels(KernelTable& table) {
  table.set(OpId::kConv2d, kFloatingTypes, conv2d);
  table.set(OpId::kConv2dBackwardInput, kFloatingTypes, backward_input);
  table.set(OpId::kConv2dBackwardFilter, kFloatingTypes, backward_filter);
  register_bias_gradient_kernels(table);
}

}  // namespace tutti::cuda
