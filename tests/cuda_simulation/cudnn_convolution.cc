// Convolution as cuDNN's descriptors define it: strides, groups, padding on both sides.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "tests/cuda_simulation/cudnn_descriptor.h"
#include "tests/cuda_simulation/cudnn_status.h"
#include "tests/cuda_simulation/simulated_elements.h"

namespace tutti::cuda_simulation {
namespace {

using Numbers = ConvolutionNumbers;

/// The attributes of the three operations, in one order.
struct Names {
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
};
Names names_of(cudnnBackendDescriptorType_t type) {
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
    return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  }
  return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

template <std::size_t n>
std::array<std::int64_t, n> array_of(const std::vector<std::int64_t>& values) {
  std::array<std::int64_t, n> result{};
  std::copy_n(values.begin(), std::min(n, values.size()), result.begin());
  return result;
}

Numbers::Tensor tensor_of(const Descriptor& descriptor) {
  return {descriptor.integer(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          descriptor.integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
          *dtype_of_cudnn(descriptor.plain<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
          array_of<4>(descriptor.integers(CUDNN_ATTR_TENSOR_DIMENSIONS)),
          array_of<4>(descriptor.integers(CUDNN_ATTR_TENSOR_STRIDES))};
}

double scale_of(const Descriptor& operation, cudnnBackendAttributeName_t name) {
  return operation.values.at(name).type == CUDNN_TYPE_DOUBLE
             ? operation.plain<double>(name)
             : static_cast<double>(operation.plain<float>(name));
}

/// Calls body(offset in x, in filter, in y) for every product of the convolution.
template <class Body>
void for_each_product(const Numbers& c, const Body& body) {
  const std::int64_t per_group = c.filter.dims[1];
  const std::int64_t groups = c.x.dims[1] / per_group, out = c.y.dims[1] / groups;
  for (std::int64_t n = 0; n < c.y.dims[0]; ++n) {
    for (std::int64_t k = 0; k < c.y.dims[1]; ++k) {
      for (std::int64_t p = 0; p < c.y.dims[2] * c.y.dims[3]; ++p) {
        const std::int64_t oh = p / c.y.dims[3], ow = p % c.y.dims[3];
        for (std::int64_t r = 0; r < c.filter.dims[2] * c.filter.dims[3]; ++r) {
          const std::int64_t kh = r / c.filter.dims[3], kw = r % c.filter.dims[3];
          const std::int64_t ih = oh * c.stride[0] + kh * c.dilation[0] - c.pad_before[0];
          const std::int64_t iw = ow * c.stride[1] + kw * c.dilation[1] - c.pad_before[1];
          if (ih < 0 || ih >= c.x.dims[2] || iw < 0 || iw >= c.x.dims[3]) continue;
          for (std::int64_t i = 0; i < per_group; ++i) {
            body(c.x.at(n, k / out * per_group + i, ih, iw), c.filter.at(k, i, kh, kw),
                 c.y.at(n, k, oh, ow));
          }
        }
      }
    }
  }
}

}  // namespace

bool is_convolution(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

std::unique_ptr<ConvolutionNumbers> numbers_of(const Descriptor& operation) {
  const Names names = names_of(operation.type);
  const Descriptor& window = operation.descriptor(names.window);
  auto numbers = std::make_unique<Numbers>();
  numbers->x = tensor_of(operation.descriptor(names.x));
  numbers->filter = tensor_of(operation.descriptor(names.filter));
  numbers->y = tensor_of(operation.descriptor(names.y));
  numbers->stride = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES));
  numbers->dilation = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_DILATIONS));
  numbers->pad_before = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS));
  numbers->pad_after = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS));
  numbers->alpha = scale_of(operation, names.alpha);
  numbers->beta = scale_of(operation, names.beta);
  numbers->result = operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                        ? &numbers->y
                    : operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                        ? &numbers->x
                        : &numbers->filter;
  return numbers;
}

std::string what_is_wrong_with(const ConvolutionNumbers& c) {
  if (c.x.dtype != c.y.dtype || c.filter.dtype != c.y.dtype) return "types differ";
  if (c.x.dims[0] != c.y.dims[0]) return "batches differ";
  if (c.filter.dims[1] < 1 || c.x.dims[1] % c.filter.dims[1] != 0) return "groups of x";
  if (c.y.dims[1] != c.filter.dims[0]) return "channels of y";
  if (c.y.dims[1] % (c.x.dims[1] / c.filter.dims[1]) != 0) return "groups of y";
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t reach = (c.filter.dims[i + 2] - 1) * c.dilation[i] + 1;
    const std::int64_t room = c.x.dims[i + 2] + c.pad_before[i] + c.pad_after[i] - reach;
    if (room < 0 || c.y.dims[i + 2] != room / c.stride[i] + 1) return "spatial extent of y";
  }
  return "";
}

void run_convolution(const ConvolutionNumbers& c, const ConvolutionPointers& pointers,
                     bool in_tf32) {
  const auto read = [&](const Numbers::Tensor& tensor, const void* data, std::int64_t i) {
    const double value = element(tensor.dtype, data, i);
    return in_tf32 && tensor.dtype == DType::kFloat32 ? as_tf32(value) : value;
  };
  const auto& dims = c.result->dims;
  std::vector<double> sums(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]), 0.0);
  const auto sum = [&](std::int64_t i) -> double& { return sums[static_cast<std::size_t>(i)]; };
  for_each_product(c, [&](std::int64_t x, std::int64_t filter, std::int64_t y) {
    if (c.result == &c.y) {
      sum(y) += read(c.x, pointers.x, x) * read(c.filter, pointers.filter, filter);
    } else if (c.result == &c.x) {
      sum(x) += read(c.y, pointers.y, y) * read(c.filter, pointers.filter, filter);
    } else {
      sum(filter) += read(c.x, pointers.x, x) * read(c.y, pointers.y, y);
    }
  });
  void* const result = c.result == &c.y   ? pointers.y
                       : c.result == &c.x ? pointers.x
                                          : pointers.filter;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
    const double old = c.beta != 0.0 ? c.beta * element(c.result->dtype, result, i) : 0.0;
    set_element(c.result->dtype, result, i, c.alpha * sum(i) + old);
  }
}

}  // namespace tutti::cuda_simulation
