// Enlarging images: each pixel of the result is a weighted sum of at most four.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/upsampling.h"

namespace tutti::internal {
namespace {

template <class T>
void upsample(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const std::int64_t channels = shape[3];
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_part<T>(shape, args.attributes_as<UpsampleAttributes>(),
                   [=](std::int64_t small, std::int64_t large, T weight) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       y[large + c] += weight * x[small + c];
                     }
                   });
}

template <class T>
void upsample_gradient(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const std::int64_t channels = shape[3];
  const T* dy = args.in<T>(0).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_part<T>(shape, args.attributes_as<UpsampleAttributes>(),
                   [=](std::int64_t small, std::int64_t large, T weight) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       dx[small + c] += weight * dy[large + c];
                     }
                   });
}

template <class T>
void register_resizing_for(KernelTable& table) {
  table.set(OpId::kUpsample, dtype_of<T>(), upsample<T>);
  table.set(OpId::kUpsampleGrad, dtype_of<T>(), upsample_gradient<T>);
}

}  // namespace

void register_resizing_kernels(KernelTable& table) {
  register_resizing_for<float>(table);
  register_resizing_for<double>(table);
}

}  // namespace tutti::internal
