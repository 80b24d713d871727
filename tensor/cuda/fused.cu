// Chains of elementwise operations that training uses, in one pass.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"

namespace tutti::cuda {
namespace {

using namespace internal;  // the formulas

template <class Activation>
struct AddThen {
  template <class N>
  __device__ N operator()(N a, N b) const {
    return Activation{}(a + b);
  }
};

struct Same {
  template <class N>
  __device__ N operator()(N x) const {
    return x;
  }
};

template <class F>
void add_then(const DeviceTensor& a, const DeviceTensor& b, const DeviceTensor& y,
              cudaStream_t stream) {
  visit_floating(y.dtype, "add_activation", [&]<class T>() {
    map<2>(AddThen<F>{}, y.shape, static_cast<T*>(y.data), {a.shape, b.shape}, stream,
           static_cast<const T*>(a.data), static_cast<const T*>(b.data));
  });
}

/// The gradient of relu where y is not positive is 0: (y, dy_a, dy_b) -> their sum, masked.
struct AddThenMask {
  template <class N>
  __device__ N operator()(N y, N a, N b) const {
    return ReluGrad{}(a + b, y);
  }
};

}  // namespace

void add_activation(const DeviceTensor& a, const DeviceTensor& b, FusedActivation activation,
                    const DeviceTensor& y, cudaStream_t stream) {
  switch (activation) {
    case FusedActivation::kNone:
      return add_then<Same>(a, b, y, stream);
    case FusedActivation::kRelu:
      return add_then<Relu>(a, b, y, stream);
    case FusedActivation::kSigmoid:
      return add_then<Sigmoid>(a, b, y, stream);
    case FusedActivation::kTanh:
      return add_then<Tanh>(a, b, y, stream);
  }
}

void add_relu_grad(const DeviceTensor& y, const DeviceTensor& dy_a, const DeviceTensor& dy_b,
                   const DeviceTensor& dx, cudaStream_t stream) {
  const Shape flat{dx.shape.num_elements()};
  visit_floating(dx.dtype, "add_relu_grad", [&]<class T>() {
    map<3>(AddThenMask{}, flat, static_cast<T*>(dx.data), {flat, flat, flat}, stream,
           static_cast<const T*>(y.data), static_cast<const T*>(dy_a.data),
           static_cast<const T*>(dy_b.data));
  });
}

}  // namespace tutti::cuda
