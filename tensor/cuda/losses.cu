// Softmax cross-entropies, and the gradient of the sparse cross-entropy, with a team of threads per
// row of logits.
// SPDX-License-Identifier: Apache-2.0
//
// A kernel cannot throw, so the loss of an invalid label is NaN, as in tf on GPUs
// (docs/deviations.md).
#include <cmath>
#include <limits>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

struct Labels {
  explicit Labels(const DeviceTensor& tensor)
      : data(tensor.data), is_wide(tensor.dtype == DType::kInt64) {}
  __device__ __forceinline__ std::int64_t operator[](std::int64_t row) const {
    return is_wide ? static_cast<const std::int64_t*>(data)[row]
                   : std::int64_t{static_cast<const std::int32_t*>(data)[row]};
  }
  const void* data;
  bool is_wide;
};

/// Logarithms of a row's softmax. The largest logit is not added to the logarithm of the sum,
/// because their sum would lose the digits of a probability near 1, or of logits far from 0.
template <class N>
struct LogSoftmax {
  __device__ N operator()(N x) const { return x - top - log_sum; }
  N top, log_sum;
};

/// Returns the LogSoftmax of `n` logits. All threads of a block must call it.
template <class T>
__device__ __forceinline__ LogSoftmax<Number<T>> log_softmax(const Teams& teams, const T* x,
                                                             std::int64_t n, Number<T>* shared) {
  using N = Number<T>;
  N top = -std::numeric_limits<N>::infinity();
  for (std::int64_t i = teams.lane(); i < n; i += teams.lanes()) {
    top = LargerNumber{}(top, number(x[i]));
  }
  top = teams.combine(top, LargerNumber{}, shared);
  N sum{0};
  for (std::int64_t i = teams.lane(); i < n; i += teams.lanes()) {
    sum += std::exp(number(x[i]) - top);
  }
  return {top, std::log(teams.combine(sum, AddNumbers{}, shared))};
}

template <class T>
__global__ void __launch_bounds__(kThreads) dense_loss(std::int64_t rows, std::int64_t n, int lanes,
                                                       const T* labels, const T* logits, T* loss) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    const std::int64_t length = row < rows ? n : 0, first = row * n;
    const auto log_of = log_softmax(teams, logits + first, length, shared);
    N sum{0};
    for (std::int64_t i = teams.lane(); i < length; i += lanes) {
      sum -= number(labels[first + i]) * log_of(number(logits[first + i]));
    }
    sum = teams.combine(sum, AddNumbers{}, shared);
    if (row < rows && teams.lane() == 0) loss[row] = element<T>(sum);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sparse_loss(std::int64_t rows, std::int64_t n, int lanes, Labels labels, const T* logits,
                T* loss) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    const auto log_of = log_softmax(teams, logits + row * n, row < rows ? n : 0, shared);
    if (row >= rows || teams.lane() != 0) return;
    const std::int64_t label = labels[row];
    const bool is_class = label >= 0 && label < n;
    loss[row] = element<T>(is_class ? -log_of(number(logits[row * n + label]))
                                    : std::numeric_limits<N>::quiet_NaN());
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sparse_gradient(std::int64_t rows, std::int64_t n, int lanes, Labels labels, const T* logits,
                    const T* dy, T* dx) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    const std::int64_t length = row < rows ? n : 0, first = row * n;
    const auto log_of = log_softmax(teams, logits + first, length, shared);
    if (row >= rows) return;
    const std::int64_t label = labels[row];
    const N scale = label >= 0 && label < n ? number(dy[row]) : std::numeric_limits<N>::quiet_NaN();
    for (std::int64_t i = teams.lane(); i < n; i += lanes) {
      const N probability = std::exp(log_of(number(logits[first + i])));
      dx[first + i] = element<T>((i == label ? probability - N{1} : probability) * scale);
    }
  });
}

/// Rows and classes of logits, and the launch configuration for them.
struct RowsOfLogits {
  explicit RowsOfLogits(const Shape& shape)
      : n(shape.dim(-1)),
        rows(shape.num_elements() / std::max<std::int64_t>(n, 1)),
        lanes(Teams::lanes_for(n)) {}
  unsigned blocks() const { return Teams::blocks_for_rows(rows, lanes); }
  std::int64_t n, rows;
  int lanes;
};

template <class T>
void softmax_cross_entropy(const KernelCall& call) {
  const RowsOfLogits r(call.inputs[1].shape);
  if (r.rows == 0) return;
  launch_cooperative(dense_loss<T>, r.blocks(), kThreads, call.stream, r.rows, r.n, r.lanes,
                     call.in<T>(0), call.in<T>(1), call.out<T>(0));
}

void sparse_softmax_cross_entropy(const KernelCall& call) {
  const RowsOfLogits r(call.inputs[1].shape);
  if (r.rows == 0) return;
  visit_floating(call.inputs[1].dtype, "sparse_softmax_cross_entropy", [&]<class T>() {
    launch_cooperative(sparse_loss<T>, r.blocks(), kThreads, call.stream, r.rows, r.n, r.lanes,
                       Labels(call.inputs[0]), call.in<T>(1), call.out<T>(0));
  });
}

void sparse_softmax_cross_entropy_grad(const KernelCall& call) {
  const RowsOfLogits r(call.inputs[1].shape);
  if (r.rows == 0) return;
  visit_floating(call.inputs[1].dtype, "sparse_softmax_cross_entropy_grad", [&]<class T>() {
    launch_cooperative(sparse_gradient<T>, r.blocks(), kThreads, call.stream, r.rows, r.n, r.lanes,
                       Labels(call.inputs[0]), call.in<T>(1), call.in<T>(2), call.out<T>(0));
  });
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kSoftmaxCrossEntropy, dtype_of<Ts>(), softmax_cross_entropy<Ts>), ...);
}

}  // namespace

void register_loss_kernels(KernelTable& table) {
  set_floating<TUTTI_FLOATING_TYPES>(table);
  for (const DType labels : {DType::kInt32, DType::kInt64}) {
    table.set(OpId::kSparseSoftmaxCrossEntropy, labels, sparse_softmax_cross_entropy);
    table.set(OpId::kSparseSoftmaxCrossEntropyGrad, labels, sparse_softmax_cross_entropy_grad);
  }
}

}  // namespace tutti::cuda
