// Matrix products, and convolution and its gradients, as plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cpu/registration.h"
#include "tensor/matmul_extent.h"

namespace tutti::internal {

// Matrix products.

namespace {

template <class T>
struct Matrix {
  const T* data;
  std::int64_t row_stride, column_stride;
  T operator()(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// Returns a view of a stored matrix, or of its transpose.
template <class T>
Matrix<T> matrix(const T* data, const Shape& stored, bool transposed) {
  const std::int64_t width = stored.dim(-1);
  return transposed ? Matrix<T>{data, 1, width} : Matrix<T>{data, width, 1};
}

template <class T>
void matmul(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<MatMulAttributes>();
  const Shape& sa = args.inputs[0].shape();
  const Shape& sb = args.inputs[1].shape();
  const MatMulExtent extent(attributes, sa, sb, args.outputs[0].shape());
  const T* bias = args.inputs.size() > 2 ? args.in<T>(2).data() : nullptr;
  T* c = args.out<T>(0).data();
  for (std::int64_t i = 0; i < extent.batch; ++i) {
    const T* a_data = args.in<T>(0).data() + extent.offset_in_a(i);
    const T* b_data = args.in<T>(1).data() + extent.offset_in_b(i);
    const auto a = matrix(a_data, sa, attributes.transpose_a);
    const auto b = matrix(b_data, sb, attributes.transpose_b);
    for (std::int64_t row = 0; row < extent.m; ++row) {
      for (std::int64_t column = 0; column < extent.n; ++column) {
        T sum = bias ? bias[column] : T{0};
        for (std::int64_t j = 0; j < extent.k; ++j) sum += a(row, j) * b(j, column);
        *c++ = activated(attributes.activation, sum);
      }
    }
  }
}

// Convolution: loops over output, window and channels.

/// Calls body(x offset, filter offset, y offset) for every output pixel, every element of its
/// window inside the image and every group, with the offsets of the group's first channel. The
/// filters of a group are a block of columns.
template <class Body>
void for_each_tap(const Shape& x, const Shape& filter, const Shape& y,
                  const Conv2dAttributes& attributes, const Body& body) {
  for (std::int64_t n = 0; n < y[0]; ++n) {
    for (std::int64_t oh = 0; oh < y[1]; ++oh) {
      for (std::int64_t ow = 0; ow < y[2]; ++ow) {
        for (std::int64_t kh = 0; kh < filter[0]; ++kh) {
          for (std::int64_t kw = 0; kw < filter[1]; ++kw) {
            const std::int64_t ih =
                oh * attributes.stride_h + kh * attributes.dilation_h - attributes.pad_top;
            const std::int64_t iw =
                ow * attributes.stride_w + kw * attributes.dilation_w - attributes.pad_left;
            if (ih < 0 || ih >= x[1] || iw < 0 || iw >= x[2]) continue;
            for (std::int64_t g = 0; g < attributes.groups; ++g) {
              const std::int64_t out = g * (y[3] / attributes.groups);
              body(((n * x[1] + ih) * x[2] + iw) * x[3] + g * filter[2],
                   (kh * filter[1] + kw) * filter[2] * filter[3] + out,
                   ((n * y[1] + oh) * y[2] + ow) * y[3] + out);
            }
          }
        }
      }
    }
  }
}

/// Calls body(x offset, filter offset, y offset) for every product that a convolution sums.
template <class Body>
void for_each_product(const Shape& x, const Shape& filter, const Shape& y, const KernelArgs& args,
                      const Body& body) {
  const auto& attributes = args.attributes_as<Conv2dAttributes>();
  const std::int64_t in = filter[2], out = filter[3], group_out = out / attributes.groups;
  for_each_tap(x, filter, y, attributes, [&](std::int64_t px, std::int64_t pf, std::int64_t py) {
    for (std::int64_t i = 0; i < in; ++i) {
      for (std::int64_t o = 0; o < group_out; ++o) body(px + i, pf + i * out + o, py + o);
    }
  });
}

template <class T>
void convolve(const KernelArgs& args) {
  const Shape &sx = args.inputs[0].shape(), &sf = args.inputs[1].shape();
  const T *x = args.in<T>(0).data(), *filter = args.in<T>(1).data();
  const auto y = args.out<T>(0);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = args.inputs.size() > 2 ? args.in<T>(2)[i % static_cast<std::size_t>(sf[3])] : T{0};
  }
  for_each_product(sx, sf, args.outputs[0].shape(), args,
                   [&](std::int64_t px, std::int64_t pf, std::int64_t py) {
                     y[static_cast<std::size_t>(py)] += x[px] * filter[pf];
                   });
  const FusedActivation activation = args.attributes_as<Conv2dAttributes>().activation;
  for (T& value : y) value = activated(activation, value);
}

template <class T>
void backward_input(const KernelArgs& args) {
  const T *dy = args.in<T>(0).data(), *filter = args.in<T>(1).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_product(
      args.outputs[0].shape(), args.inputs[1].shape(), args.inputs[0].shape(), args,
      [&](std::int64_t px, std::int64_t pf, std::int64_t py) { dx[px] += dy[py] * filter[pf]; });
}

template <class T>
void backward_filter(const KernelArgs& args) {
  const T *x = args.in<T>(0).data(), *dy = args.in<T>(1).data();
  T* df = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_product(
      args.inputs[0].shape(), args.outputs[0].shape(), args.inputs[1].shape(), args,
      [&](std::int64_t px, std::int64_t pf, std::int64_t py) { df[pf] += x[px] * dy[py]; });
}

// Sums over all dimensions except the channel dimension, separately for each channel, in row order,
// in double precision.
template <class T>
void bias_gradient(const KernelArgs& args) {
  const auto dy = args.in<T>(0);
  const auto db = args.out<T>(0);
  for (std::size_t c = 0; c < db.size(); ++c) {
    double sum = 0.0;
    for (std::size_t i = c; i < dy.size(); i += db.size()) sum += static_cast<double>(dy[i]);
    db[c] = static_cast<T>(sum);
  }
}

template <class T>
void register_products_for(KernelTable& table) {
  table.set(OpId::kMatMul, dtype_of<T>(), matmul<T>);
  table.set(OpId::kConv2d, dtype_of<T>(), convolve<T>);
  table.set(OpId::kConv2dBackwardInput, dtype_of<T>(), backward_input<T>);
  table.set(OpId::kConv2dBackwardFilter, dtype_of<T>(), backward_filter<T>);
  table.set(OpId::kBiasGrad, dtype_of<T>(), bias_gradient<T>);
}

}  // namespace

void register_product_reference_kernels(KernelTable& table) {
  register_products_for<float>(table);
  register_products_for<double>(table);
}

}  // namespace tutti::internal
