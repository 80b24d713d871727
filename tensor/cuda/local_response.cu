// Local response normalisation and its gradient, with one thread per element.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

/// Input x, viewed as [pixels, channels], and the attributes, converted to type N.
template <class N>
struct Window {
  explicit Window(const KernelCall& call)
      : channels(call.inputs[0].shape.dim(-1)), count(call.inputs[0].shape.num_elements()) {
    const auto& a = call.attributes_as<LrnAttributes>();
    radius = a.depth_radius;
    bias = static_cast<N>(a.bias);
    alpha = static_cast<N>(a.alpha);
    power = static_cast<N>(-a.beta);
    power_of_gradient = static_cast<N>(-a.beta - 1.0);
    two_alpha_beta = static_cast<N>(2.0 * a.alpha * a.beta);
  }

  /// Calls body(j) for the index j of each element whose channel is within `radius` of element i's
  /// channel.
  template <class Body>
  __device__ __forceinline__ void for_each_near(std::int64_t i, const Body& body) const {
    const std::int64_t c = i - quotient_of_large(i, channels) * channels;
    const std::int64_t before = c < radius ? c : radius;
    const std::int64_t after = channels - 1 - c < radius ? channels - 1 - c : radius;
    for (std::int64_t j = i - before; j <= i + after; ++j) body(j);
  }
  /// Returns bias + alpha * the sum of squares around element i.
  template <class T>
  __device__ __forceinline__ N base(const T* x, std::int64_t i) const {
    N sum{0};
    for_each_near(i, [&](std::int64_t j) { sum += number(x[j]) * number(x[j]); });
    return bias + alpha * sum;
  }

  std::int64_t channels, count, radius = 0;
  N bias, alpha, power, power_of_gradient, two_alpha_beta;
};

template <class T>
__global__ void __launch_bounds__(kThreads) respond(Window<Number<T>> window, const T* x, T* y) {
  for (std::int64_t i = thread_number(); i < window.count; i += num_threads()) {
    y[i] = element<T>(number(x[i]) * std::pow(window.base(x, i), window.power));
  }
}

// y_i = x_i base_i^-beta, so dx_j = dy_j base_j^-beta - 2 alpha beta x_j * sum over i near j of
// dy_i x_i base_i^(-beta-1). The first launch computes the bases and terms, the second the sums.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_gradient(Window<Number<T>> window, const T* x, const T* dy, Number<T>* bases,
                     Number<T>* terms) {
  for (std::int64_t i = thread_number(); i < window.count; i += num_threads()) {
    bases[i] = window.base(x, i);
    terms[i] = number(dy[i]) * number(x[i]) * std::pow(bases[i], window.power_of_gradient);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_gradient(Window<Number<T>> window, const T* x, const T* dy, const Number<T>* bases,
                    const Number<T>* terms, T* dx) {
  for (std::int64_t j = thread_number(); j < window.count; j += num_threads()) {
    Number<T> sum{0};
    window.for_each_near(j, [&](std::int64_t i) { sum += terms[i]; });
    dx[j] = element<T>(number(dy[j]) * std::pow(bases[j], window.power) -
                       window.two_alpha_beta * number(x[j]) * sum);
  }
}

template <class T>
void forward(const KernelCall& call) {
  const Window<Number<T>> window(call);
  if (window.count == 0) return;
  launch(respond<T>, blocks_for(static_cast<std::size_t>(window.count)), kThreads, call.stream,
         window, call.in<T>(0), call.out<T>(0));
}

template <class T>
void backward(const KernelCall& call) {
  using N = Number<T>;
  const Window<N> window(call);
  if (window.count == 0) return;
  const auto count = static_cast<std::size_t>(window.count);
  auto* const bases = static_cast<N*>(call.workspace.allocate(count * sizeof(N)));
  auto* const terms = static_cast<N*>(call.workspace.allocate(count * sizeof(N)));
  launch(prepare_gradient<T>, blocks_for(count), kThreads, call.stream, window, call.in<T>(0),
         call.in<T>(1), bases, terms);
  launch(finish_gradient<T>, blocks_for(count), kThreads, call.stream, window, call.in<T>(0),
         call.in<T>(1), bases, terms, call.out<T>(0));
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kLrn, dtype_of<Ts>(), forward<Ts>), ...);
  (table.set(OpId::kLrnGrad, dtype_of<Ts>(), backward<Ts>), ...);
}

}  // namespace

void register_local_response_kernels(KernelTable& table) {
  set_floating<TUTTI_FLOATING_TYPES>(table);
}

}  // namespace tutti::cuda
