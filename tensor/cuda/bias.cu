// Addition of a bias to the channels of a tensor, with an activation, and the bias gradient.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/channel_sums.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {

// Adds a bias and applies an activation, in one pass.

namespace {

using internal::activated;

// `Index` is the unsigned type of pack indices; 32-bit division is several times faster than
// 64-bit.
template <class T, int N, class Index>
__global__ void bias_activation(Pack<T, N>* y, const Pack<T, N>* bias, Index count,
                                Index packs_per_row, FusedActivation activation) {
  const Index stride = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    Pack<T, N> pack = y[i];
    Pack<T, N> added{};
    if (bias != nullptr) added = bias[i % packs_per_row];
    for (int j = 0; j < N; ++j) {
      Number<T> x = number(pack.elements[j]);
      if (bias != nullptr) x += number(added.elements[j]);
      pack.elements[j] = element<T>(activated(activation, x));
    }
    y[i] = pack;
  }
}

template <class T, int N>
void add_and_activate(void* y, const void* bias, std::size_t count, std::size_t channels,
                      FusedActivation activation, cudaStream_t stream) {
  const std::size_t packs = count / N, per_row = channels / N;
  const auto start = [&]<class Index>(Index) {
    launch(bias_activation<T, N, Index>, blocks_for(packs), kThreads, stream,
           static_cast<Pack<T, N>*>(y), static_cast<const Pack<T, N>*>(bias),
           static_cast<Index>(packs), static_cast<Index>(per_row), activation);
  };
  constexpr std::size_t kSmall = std::size_t{1} << 31;
  packs < kSmall ? start(std::uint32_t{}) : start(std::uint64_t{});
}

}  // namespace

void add_bias_and_activate(const DeviceTensor& y, const void* bias, FusedActivation activation,
                           cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(y.shape.num_elements());
  if (count == 0 || (bias == nullptr && activation == FusedActivation::kNone)) return;
  const std::int64_t channels = y.shape.dim(-1);
  visit_floating(y.dtype, "bias and activation", [&]<class T>() {
    const bool packed = can_pack<T, kPackOf<T>>(channels, y.data, bias);
    const auto width = static_cast<std::size_t>(channels);
    packed ? add_and_activate<T, kPackOf<T>>(y.data, bias, count, width, activation, stream)
           : add_and_activate<T, 1>(y.data, bias, count, width, activation, stream);
  });
}

// Gradient of the bias: the sum over all axes except the channel axis.

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
