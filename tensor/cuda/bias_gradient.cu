// The gradient of a bias: the sum over everything but the channels.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/channel_sums.h"
#include "tutti/tensor/cuda/kernels.h"

namespace tutti::cuda {
namespace {

template <class T, int N>
struct BiasTerms {
  const T* dy;
  std::int64_t channels;
  __device__ void add(std::int64_t row, int pack, Number<T>* a, Number<T>*) const {
    const auto values =
        *reinterpret_cast<const Pack<T, N>*>(dy + row * channels + std::int64_t{pack} * N);
    for (int j = 0; j < N; ++j) a[j] += number(values.elements[j]);
  }
};

template <class T>
struct StoreFirst {
  T* result;
  __device__ void operator()(std::int64_t channel, double sum, double) const {
    result[channel] = element<T>(static_cast<Number<T>>(sum));
  }
};

template <class T, int N>
void run(const KernelCall& call, std::int64_t rows, std::int64_t channels) {
  sum_over_rows<T, N>(rows, channels, BiasTerms<T, N>{call.in<T>(0), channels},
                      StoreFirst<T>{call.out<T>(0)}, call);
}

template <class T>
void bias_gradient(const KernelCall& call) {
  const std::int64_t channels = call.outputs[0].shape.num_elements();
  if (channels == 0) return;
  const std::int64_t rows = call.inputs[0].shape.num_elements() / channels;
  constexpr int kPack = kFewOf<T>;
  can_pack<T, kPack>(channels, call.inputs[0].data) ? run<T, kPack>(call, rows, channels)
                                                    : run<T, 1>(call, rows, channels);
}

}  // namespace

void register_bias_gradient_kernels(KernelTable& table) {
  table.set(OpId::kBiasGrad, DType::kFloat32, bias_gradient<float>);
  table.set(OpId::kBiasGrad, DType::kFloat64, bias_gradient<double>);
  table.set(OpId::kBiasGrad, DType::kBFloat16, bias_gradient<BFloat16>);
  table.set(OpId::kBiasGrad, DType::kFloat16, bias_gradient<Float16>);
}

}  // namespace tutti::cuda
