// Batch normalisation, its gradient, and normalisation with given statistics.
// SPDX-License-Identifier: Apache-2.0
//
// Implemented without cuDNN, which returns 1 / deviation instead of the variance, requires float32
// parameters with 16-bit data, and keeps hidden state between a step's forward and backward passes.
// x is viewed as [rows, channels]. gamma, beta, mean and variance may be float32 if x has a 16-bit
// type.
#include <cmath>

#include "tensor/cuda/channel_sums.h"
#include "tensor/cuda/kernels.h"

namespace tutti::cuda {
namespace {

/// Values per channel, stored in the workspace in the type of the computation.
template <class T>
struct Channels {
  Channels(std::int64_t count, const KernelCall& call)
      : first(static_cast<Number<T>*>(
            call.workspace.allocate(static_cast<std::size_t>(5 * count) * sizeof(Number<T>)))),
        mean(first),
        inverse(first + count),  // 1 / deviation
        scale(first + 2 * count),
        offset(first + 3 * count),
        slope(first + 4 * count) {}
  Number<T>*first, *mean, *inverse, *scale, *offset, *slope;
};

template <class T, int N>
__device__ Pack<T, N> load(const T* data, std::int64_t row, std::int64_t channels, int pack) {
  return *reinterpret_cast<const Pack<T, N>*>(data + row * channels + std::int64_t{pack} * N);
}

/// Sums of x - s and (x - s)^2, where s is the channel's first element. It is usually near the
/// mean, which avoids cancellation.
template <class T, int N>
struct Moments {
  const T* x;
  std::int64_t channels;
  __device__ void add(std::int64_t row, int pack, Number<T>* a, Number<T>* b) const {
    const auto values = load<T, N>(x, row, channels, pack);
    const auto shifts = load<T, N>(x, 0, channels, pack);
    for (int j = 0; j < N; ++j) {
      const Number<T> distance = number(values.elements[j]) - number(shifts.elements[j]);
      a[j] += distance;
      b[j] += distance * distance;
    }
  }
};

template <class T, class P>
struct FinishMoments {
  const T* x;
  const P *gamma, *beta;
  P *mean, *variance;
  Channels<T> channels;
  std::int64_t rows;
  double epsilon;
  __device__ void operator()(std::int64_t c, double sum, double squares) const {
    double center = 0.0, spread = 0.0;
    if (rows > 0) {
      const double distance = sum / static_cast<double>(rows);
      center = static_cast<double>(number(x[c])) + distance;
      spread = squares / static_cast<double>(rows) - distance * distance;
      if (spread < 0.0) spread = 0.0;  // NaN stays NaN
    }
    mean[c] = element<P>(static_cast<Number<P>>(center));
    variance[c] = element<P>(static_cast<Number<P>>(spread));
    const auto deviation = static_cast<Number<T>>(sqrt(spread + epsilon));
    channels.mean[c] = static_cast<Number<T>>(center);
    channels.scale[c] = static_cast<Number<T>>(number(gamma[c])) / deviation;
    channels.offset[c] = static_cast<Number<T>>(number(beta[c]));
  }
};

/// Computes, from given statistics, the per-channel values that normalize() and the gradient need.
template <class T, class P>
__global__ void prepare(const P* gamma, const P* beta, const P* mean, const P* variance,
                        Channels<T> channels, std::int64_t count, Number<T> epsilon) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= count) return;
  channels.mean[c] = static_cast<Number<T>>(number(mean[c]));
  channels.inverse[c] =
      Number<T>{1} / std::sqrt(static_cast<Number<T>>(number(variance[c])) + epsilon);
  channels.scale[c] = static_cast<Number<T>>(number(gamma[c])) * channels.inverse[c];
  channels.offset[c] = beta != nullptr ? static_cast<Number<T>>(number(beta[c])) : Number<T>{0};
}

/// Loads N adjacent elements of an array of Channels, beginning at index c, in one access; c is a
/// multiple of N.
template <class T, int N>
__device__ Pack<Number<T>, N> neighbours(const Number<T>* array, std::uint32_t c) {
  return *reinterpret_cast<const Pack<Number<T>, N>*>(array + c);
}

/// Packs of a thread. If the number of packs in a row is a power of two, all packs of a thread have
/// the same channels, so that the values of these channels are loaded once.
struct Walk {
  std::uint32_t count, packs_per_row;
  Divisor by_packs;
  __device__ std::uint32_t first() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  __device__ std::uint32_t stride() const { return gridDim.x * blockDim.x; }
  template <int N>
  __device__ std::uint32_t channel(std::uint32_t i) const {
    return (i - by_packs.quotient(i) * packs_per_row) * N;
  }
};
constexpr std::uint32_t kNoChannel = 0xffffffffu;

/// Computes y = (x - mean) * scale + offset.
template <class T, int N>
__global__ void normalize(const Pack<T, N>* x, Pack<T, N>* y, Channels<T> channels, Walk walk) {
  Pack<Number<T>, N> mean{}, scale{}, offset{};
  std::uint32_t loaded = kNoChannel;
  for (std::uint32_t i = walk.first(); i < walk.count; i += walk.stride()) {
    const std::uint32_t c = walk.channel<N>(i);
    if (c != loaded) {
      mean = neighbours<T, N>(channels.mean, c);
      scale = neighbours<T, N>(channels.scale, c);
      offset = neighbours<T, N>(channels.offset, c);
      loaded = c;
    }
    Pack<T, N> values = x[i];
    for (int j = 0; j < N; ++j) {
      const Number<T> centered = number(values.elements[j]) - mean.elements[j];
      values.elements[j] = element<T>(centered * scale.elements[j] + offset.elements[j]);
    }
    y[i] = values;
  }
}

/// Sums of dy and dy * z, with z = (x - mean) / deviation.
template <class T, int N>
struct GradientTerms {
  const T *x, *dy;
  Channels<T> per_channel;
  std::int64_t channels;
  __device__ void add(std::int64_t row, int pack, Number<T>* a, Number<T>* b) const {
    const auto values = load<T, N>(x, row, channels, pack);
    const auto gradients = load<T, N>(dy, row, channels, pack);
    for (int j = 0; j < N; ++j) {
      const std::int64_t c = std::int64_t{pack} * N + j;
      const Number<T> gradient = number(gradients.elements[j]);
      a[j] += gradient;
      b[j] +=
          gradient * (number(values.elements[j]) - per_channel.mean[c]) * per_channel.inverse[c];
    }
  }
};

template <class T, class P>
struct FinishGradient {
  P *dgamma, *dbeta;
  Channels<T> channels;
  std::int64_t rows;
  __device__ void operator()(std::int64_t c, double sum, double moment) const {
    dbeta[c] = element<P>(static_cast<Number<P>>(sum));
    dgamma[c] = element<P>(static_cast<Number<P>>(moment));
    const double share = rows > 0 ? 1.0 / static_cast<double>(rows) : 0.0;
    channels.offset[c] = static_cast<Number<T>>(sum * share);
    channels.slope[c] = static_cast<Number<T>>(moment * share);
  }
};

/// Computes dx = gamma / deviation * (dy - mean(dy) - z * mean(dy * z)).
template <class T, int N>
__global__ void input_gradient(const Pack<T, N>* x, const Pack<T, N>* dy, Pack<T, N>* dx,
                               Channels<T> channels, Walk walk) {
  Pack<Number<T>, N> mean{}, inverse{}, scale{}, offset{}, slope{};
  std::uint32_t loaded = kNoChannel;
  for (std::uint32_t i = walk.first(); i < walk.count; i += walk.stride()) {
    const std::uint32_t c = walk.channel<N>(i);
    if (c != loaded) {
      mean = neighbours<T, N>(channels.mean, c);
      inverse = neighbours<T, N>(channels.inverse, c);
      scale = neighbours<T, N>(channels.scale, c);
      offset = neighbours<T, N>(channels.offset, c);
      slope = neighbours<T, N>(channels.slope, c);
      loaded = c;
    }
    const Pack<T, N> values = x[i];
    Pack<T, N> gradients = dy[i];
    for (int j = 0; j < N; ++j) {
      const Number<T> z = (number(values.elements[j]) - mean.elements[j]) * inverse.elements[j];
      const Number<T> rest =
          number(gradients.elements[j]) - (offset.elements[j] + z * slope.elements[j]);
      gradients.elements[j] = element<T>(scale.elements[j] * rest);
    }
    dx[i] = gradients;
  }
}

struct Extent {
  std::int64_t rows, channels;
};

Extent extent_of(const KernelCall& call) {
  const std::int64_t channels = call.inputs[1].shape.num_elements();
  return {channels > 0 ? call.inputs[0].shape.num_elements() / channels : 0, channels};
}

/// Returns a number of blocks that is large enough to fill a GPU; each thread processes several
/// packs.
unsigned blocks_of(const Walk& walk) {
  constexpr unsigned kMaxBlocks = 2'048;
  return std::min(blocks_for(walk.count), kMaxBlocks);
}

/// Calls body(first element, walk) for consecutive groups of rows, each small enough that its packs
/// can be counted with 32 bits.
template <int N, class Body>
void for_each_part(const Extent& extent, const Body& body) {
  const std::int64_t packs_per_row = extent.channels / N;
  const auto per_row = static_cast<std::uint32_t>(packs_per_row);
  const std::int64_t rows_of_part =
      std::max<std::int64_t>(1, (std::int64_t{1} << 30) / packs_per_row);
  for (std::int64_t row = 0; row < extent.rows; row += rows_of_part) {
    const std::int64_t rows = std::min(rows_of_part, extent.rows - row);
    body(row * extent.channels,
         Walk{static_cast<std::uint32_t>(rows * packs_per_row), per_row, Divisor(per_row)});
  }
}

template <class T, int N>
Pack<T, N>* packs(void* data, std::int64_t first) {
  return reinterpret_cast<Pack<T, N>*>(static_cast<T*>(data) + first);
}

template <class T, int N>
void launch_normalize(const Extent& extent, const Channels<T>& channels, const KernelCall& call) {
  for_each_part<N>(extent, [&](std::int64_t first, const Walk& walk) {
    launch(normalize<T, N>, blocks_of(walk), kThreads, call.stream,
           packs<T, N>(call.inputs[0].data, first), packs<T, N>(call.outputs[0].data, first),
           channels, walk);
  });
}

double epsilon_of(const KernelCall& call) {
  return call.attributes_as<BatchNormAttributes>().epsilon;
}

template <class T, class P, int N, int M>
void train(const KernelCall& call, const Extent& extent) {
  const Channels<T> channels(extent.channels, call);
  const FinishMoments<T, P> finish{call.in<T>(0),  call.in<P>(1), call.in<P>(2), call.out<P>(1),
                                   call.out<P>(2), channels,      extent.rows,   epsilon_of(call)};
  sum_over_rows<T, N>(extent.rows, extent.channels, Moments<T, N>{call.in<T>(0), extent.channels},
                      finish, call);
  launch_normalize<T, M>(extent, channels, call);
}

/// Launches prepare() with gamma, beta (or nullptr), mean and variance.
template <class T, class P>
void launch_prepare(const P* gamma, const P* beta, const P* mean, const P* variance,
                    const Channels<T>& channels, const Extent& extent, const KernelCall& call) {
  launch(prepare<T, P>, static_cast<unsigned>((extent.channels + kThreads - 1) / kThreads),
         kThreads, call.stream, gamma, beta, mean, variance, channels, extent.channels,
         static_cast<Number<T>>(epsilon_of(call)));
}

template <class T, class P, int N, int M>
void infer(const KernelCall& call, const Extent& extent) {
  const Channels<T> channels(extent.channels, call);
  launch_prepare(call.in<P>(1), call.in<P>(2), call.in<P>(3), call.in<P>(4), channels, extent,
                 call);
  launch_normalize<T, M>(extent, channels, call);
}

template <class T, class P, int N, int M>
void differentiate(const KernelCall& call, const Extent& extent) {
  const Channels<T> channels(extent.channels, call);
  launch_prepare(call.in<P>(1), static_cast<const P*>(nullptr), call.in<P>(2), call.in<P>(3),
                 channels, extent, call);
  sum_over_rows<T, N>(extent.rows, extent.channels,
                      GradientTerms<T, N>{call.in<T>(0), call.in<T>(4), channels, extent.channels},
                      FinishGradient<T, P>{call.out<P>(1), call.out<P>(2), channels, extent.rows},
                      call);
  for_each_part<M>(extent, [&](std::int64_t first, const Walk& walk) {
    launch(input_gradient<T, M>, blocks_of(walk), kThreads, call.stream,
           packs<T, M>(call.inputs[0].data, first), packs<T, M>(call.inputs[4].data, first),
           packs<T, M>(call.outputs[0].data, first), channels, walk);
  });
}

/// Calls body.operator()<P>(), where P is the type of the parameters.
template <class T, class Body>
void visit_parameters(const KernelCall& call, const Body& body) {
  const DType given = call.inputs[1].dtype;
  if (given == dtype_of<T>()) return body.template operator()<T>();
  if constexpr (Half<T>) {
    if (given == DType::kFloat32) return body.template operator()<float>();
  }
  fail(ErrorCode::kInvalidArgument, "batch normalisation: expected parameters of type ",
       to_string(dtype_of<T>()), Half<T> ? " or float32" : "", ", got ", to_string(given));
}

/// Returns true if x and the other tensors of its shape can be read in packs.
template <class T>
bool packs_fit(const KernelCall& call, const Extent& extent) {
  const void* const third =
      call.inputs.back().shape == call.inputs[0].shape ? call.inputs.back().data : nullptr;
  return can_pack<T, kPackOf<T>>(extent.channels, call.inputs[0].data, call.outputs[0].data, third);
}

template <class T>
void batch_norm_training(const KernelCall& call) {
  const Extent extent = extent_of(call);
  if (extent.channels == 0) return;
  visit_parameters<T>(call, [&]<class P>() {
    packs_fit<T>(call, extent) ? train<T, P, kFewOf<T>, kPackOf<T>>(call, extent)
                               : train<T, P, 1, 1>(call, extent);
  });
}

template <class T>
void batch_norm_inference(const KernelCall& call) {
  const Extent extent = extent_of(call);
  if (extent.channels == 0) return;
  visit_parameters<T>(call, [&]<class P>() {
    packs_fit<T>(call, extent) ? infer<T, P, kFewOf<T>, kPackOf<T>>(call, extent)
                               : infer<T, P, 1, 1>(call, extent);
  });
}

template <class T>
void batch_norm_grad(const KernelCall& call) {
  const Extent extent = extent_of(call);
  if (extent.channels == 0) return;
  visit_parameters<T>(call, [&]<class P>() {
    packs_fit<T>(call, extent) ? differentiate<T, P, kFewOf<T>, kPackOf<T>>(call, extent)
                               : differentiate<T, P, 1, 1>(call, extent);
  });
}

template <class T>
void register_for(KernelTable& table) {
  table.set(OpId::kBatchNormTraining, dtype_of<T>(), batch_norm_training<T>);
  table.set(OpId::kBatchNormInference, dtype_of<T>(), batch_norm_inference<T>);
  table.set(OpId::kBatchNormGrad, dtype_of<T>(), batch_norm_grad<T>);
}

}  // namespace

void register_batch_normalization_kernels(KernelTable& table) {
  register_for<float>(table);
  register_for<double>(table);
  register_for<BFloat16>(table);
  register_for<Float16>(table);
}

}  // namespace tutti::cuda
