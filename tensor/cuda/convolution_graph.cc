// Builds the descriptors of a convolution for cuDNN's graph API.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/convolution_graph.h"

#include <algorithm>

#include "tensor/cuda/math_libraries.h"
#include "tutti/core/error.h"

namespace tutti::cuda {
namespace {

using Dims = std::array<std::int64_t, 4>;

/// `shape` is stored [outer, height, width, channels]; cuDNN names dimensions [outer, channels,
/// height, width] and learns the order from the strides.
BackendDescriptor tensor(std::int64_t id, DType dtype, const Dims& shape, std::int64_t alignment) {
  const auto& [outer, height, width, channels] = shape;
  const Dims dims{outer, channels, height, width};
  const Dims strides{height * width * channels, 1, width * channels, channels};
  BackendDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(dtype));
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  descriptor.set_integers(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  descriptor.set_integers(CUDNN_ATTR_TENSOR_STRIDES, strides);
  descriptor.finalize();
  return descriptor;
}

BackendDescriptor window_of(DType dtype, const Conv2dAttributes& a) {
  using Pair = std::array<std::int64_t, 2>;
  BackendDescriptor descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
                 dtype == DType::kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                 CUDNN_CROSS_CORRELATION);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_DILATIONS, Pair{a.dilation_h, a.dilation_w});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Pair{a.stride_h, a.stride_w});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Pair{a.pad_top, a.pad_left});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Pair{a.pad_bottom, a.pad_right});
  descriptor.finalize();
  return descriptor;
}

/// The names of an operation's attributes in cuDNN.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
};

OperationNames names_of(OpId op) {
  if (op == OpId::kConv2d) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
  if (op == OpId::kConv2dBackwardInput) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  }
  TUTTI_CHECK(op == OpId::kConv2dBackwardFilter, "no convolution: ", to_string(op));
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

void set_scale(BackendDescriptor& operation, cudnnBackendAttributeName_t name, DType dtype,
               double value) {
  if (dtype == DType::kFloat64) {
    operation.set(name, CUDNN_TYPE_DOUBLE, value);
  } else {
    operation.set(name, CUDNN_TYPE_FLOAT, static_cast<float>(value));
  }
}

}  // namespace

BackendDescriptor::BackendDescriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

BackendDescriptor::~BackendDescriptor() {
  if (descriptor_ != nullptr) (void)cudnnBackendDestroyDescriptor(descriptor_);
}

BackendDescriptor& BackendDescriptor::operator=(BackendDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void BackendDescriptor::set_array(cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, std::int64_t count,
                                  const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
        "cudnnBackendSetAttribute");
}

void BackendDescriptor::finalize() {
  check(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

ConvolutionProblem::Key ConvolutionProblem::key() const {
  const Conv2dAttributes& a = attributes;
  Key key{static_cast<std::int64_t>(op), static_cast<std::int64_t>(dtype)};
  auto next = key.begin() + 2;
  for (const Dims& shape : {x, filter, y}) next = std::ranges::copy(shape, next).out;
  for (const std::int64_t value :
       {a.stride_h, a.stride_w, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right, a.dilation_h,
        a.dilation_w, a.groups, x_alignment, filter_alignment, y_alignment}) {
    *next++ = value;
  }
  TUTTI_CHECK(next <= key.end());
  return key;
}

ConvolutionGraph::ConvolutionGraph(const ConvolutionProblem& problem, cudnnHandle_t handle)
    : x(tensor(kXId, problem.dtype, problem.x, problem.x_alignment)),
      filter(tensor(kFilterId, problem.dtype, problem.filter, problem.filter_alignment)),
      y(tensor(kYId, problem.dtype, problem.y, problem.y_alignment)),
      window(window_of(problem.dtype, problem.attributes)),
      operation(names_of(problem.op).type),
      graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  const OperationNames names = names_of(problem.op);
  operation.set_descriptor(names.x, x);
  operation.set_descriptor(names.filter, filter);
  operation.set_descriptor(names.y, y);
  operation.set_descriptor(names.window, window);
  set_scale(operation, names.alpha, problem.dtype, 1.0);
  set_scale(operation, names.beta, problem.dtype, 0.0);
  operation.finalize();
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.set_descriptor(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();
}

}  // namespace tutti::cuda
