// Convolution and its gradients as plain loops over output, window and channels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/tensor/cpu/activation.h"
#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// Calls body(x offset, filter offset, y offset) for every pair of pixel and window element and
/// every group, offsets of the group's first channel. A group's filters are a block of columns.
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

template <class T>
void convolve(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<Conv2dAttributes>();
  const Shape& sx = args.inputs[0].shape();
  const Shape& sf = args.inputs[1].shape();
  const std::int64_t in = sf[2], out = sf[3];
  const std::int64_t group_out = out / args.attributes_as<Conv2dAttributes>().groups;
  const T* x = args.in<T>(0).data();
  const T* filter = args.in<T>(1).data();
  const auto y = args.out<T>(0);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = args.inputs.size() > 2 ? args.in<T>(2)[i % static_cast<std::size_t>(out)] : T{0};
  }
  for_each_tap(sx, sf, args.outputs[0].shape(), attributes,
               [&](std::int64_t px, std::int64_t pf, std::int64_t py) {
                 for (std::int64_t i = 0; i < in; ++i) {
                   for (std::int64_t o = 0; o < group_out; ++o) {
                     y[static_cast<std::size_t>(py + o)] += x[px + i] * filter[pf + i * out + o];
                   }
                 }
               });
  for (T& value : y) value = activated(attributes.activation, value);
}

template <class T>
void backward_input(const KernelArgs& args) {
  const Shape& sf = args.inputs[1].shape();
  const std::int64_t in = sf[2], out = sf[3];
  const std::int64_t group_out = out / args.attributes_as<Conv2dAttributes>().groups;
  const T* dy = args.in<T>(0).data();
  const T* filter = args.in<T>(1).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_tap(args.outputs[0].shape(), sf, args.inputs[0].shape(),
               args.attributes_as<Conv2dAttributes>(),
               [&](std::int64_t px, std::int64_t pf, std::int64_t py) {
                 for (std::int64_t i = 0; i < in; ++i) {
                   for (std::int64_t o = 0; o < group_out; ++o) {
                     dx[px + i] += dy[py + o] * filter[pf + i * out + o];
                   }
                 }
               });
}

template <class T>
void backward_filter(const KernelArgs& args) {
  const Shape& sf = args.outputs[0].shape();
  const std::int64_t in = sf[2], out = sf[3];
  const std::int64_t group_out = out / args.attributes_as<Conv2dAttributes>().groups;
  const T* x = args.in<T>(0).data();
  const T* dy = args.in<T>(1).data();
  T* df = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_tap(args.inputs[0].shape(), sf, args.inputs[1].shape(),
               args.attributes_as<Conv2dAttributes>(),
               [&](std::int64_t px, std::int64_t pf, std::int64_t py) {
                 for (std::int64_t i = 0; i < in; ++i) {
                   for (std::int64_t o = 0; o < group_out; ++o) {
                     df[pf + i * out + o] += x[px + i] * dy[py + o];
                   }
                 }
               });
}

// Sums over everything but the channels: row after row, each channel by itself, in double.
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
void register_convolution_for(KernelTable& table) {
  table.set(OpId::kConv2d, dtype_of<T>(), convolve<T>);
  table.set(OpId::kConv2dBackwardInput, dtype_of<T>(), backward_input<T>);
  table.set(OpId::kConv2dBackwardFilter, dtype_of<T>(), backward_filter<T>);
  table.set(OpId::kBiasGrad, dtype_of<T>(), bias_gradient<T>);
}

}  // namespace

void register_convolution_reference_kernels(KernelTable& table) {
  register_convolution_for<float>(table);
  register_convolution_for<double>(table);
}

}  // namespace tutti::internal
