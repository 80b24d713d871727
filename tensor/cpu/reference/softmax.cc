// Softmax, cross-entropies and their gradients, row by row.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/names.h"
#include "tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

template <class T>
using Row = std::span<const T>;

/// Calls body(row number, first element, number of classes) for each row.
template <class Body>
void for_each_row(const Shape& shape, const Body& body) {
  const auto classes = static_cast<std::size_t>(shape.dim(-1));
  const auto rows =
      static_cast<std::size_t>(shape.num_elements()) / std::max<std::size_t>(classes, 1);
  for (std::size_t row = 0; row < rows; ++row) body(row, row * classes, classes);
}

/// Logarithms of a row's softmax. The largest element and the logarithm of the sum are stored
/// separately, because their float32 sum would lose the digits of a probability near 1, or of
/// logits far from 0.
template <class T>
class LogSoftmax {
 public:
  explicit LogSoftmax(Row<T> x) : top_(*std::ranges::max_element(x)) {
    double sum = 0.0;
    for (const T value : x) sum += static_cast<double>(std::exp(value - top_));
    log_sum_ = std::log(sum);
  }
  /// Returns x - log(sum of exp(row)).
  T operator()(T x) const { return static_cast<T>(static_cast<double>(x - top_) - log_sum_); }

 private:
  T top_;
  double log_sum_ = 0.0;
};

template <class T>
void softmax(const KernelArgs& args) {
  const auto x = args.in<T>(0);
  const auto y = args.out<T>(0);
  for_each_row(args.inputs[0].shape(), [&](std::size_t, std::size_t first, std::size_t n) {
    const T top = *std::ranges::max_element(x.subspan(first, n));
    T sum{0};
    for (std::size_t i = first; i < first + n; ++i) sum += y[i] = std::exp(x[i] - top);
    for (std::size_t i = first; i < first + n; ++i) y[i] /= sum;
  });
}

template <class T>
void log_softmax(const KernelArgs& args) {
  const auto x = args.in<T>(0);
  const auto y = args.out<T>(0);
  for_each_row(args.inputs[0].shape(), [&](std::size_t, std::size_t first, std::size_t n) {
    const LogSoftmax<T> log_of(x.subspan(first, n));
    for (std::size_t i = first; i < first + n; ++i) y[i] = log_of(x[i]);
  });
}

template <class T>
void softmax_grad(const KernelArgs& args) {
  const auto y = args.in<T>(0), dy = args.in<T>(1);
  const auto dx = args.out<T>(0);
  for_each_row(args.inputs[0].shape(), [&](std::size_t, std::size_t first, std::size_t n) {
    T dot{0};
    for (std::size_t i = first; i < first + n; ++i) dot += y[i] * dy[i];
    for (std::size_t i = first; i < first + n; ++i) dx[i] = y[i] * (dy[i] - dot);
  });
}

template <class T>
void log_softmax_grad(const KernelArgs& args) {
  const auto y = args.in<T>(0), dy = args.in<T>(1);
  const auto dx = args.out<T>(0);
  for_each_row(args.inputs[0].shape(), [&](std::size_t, std::size_t first, std::size_t n) {
    T sum{0};
    for (std::size_t i = first; i < first + n; ++i) sum += dy[i];
    for (std::size_t i = first; i < first + n; ++i) dx[i] = dy[i] - std::exp(y[i]) * sum;
  });
}

/// Computes the losses [batch] from labels [batch, classes] and logits.
template <class T>
void softmax_cross_entropy(const KernelArgs& args) {
  const auto labels = args.in<T>(0), logits = args.in<T>(1);
  const auto loss = args.out<T>(0);
  for_each_row(args.inputs[1].shape(), [&](std::size_t row, std::size_t first, std::size_t n) {
    const LogSoftmax<T> log_of(logits.subspan(first, n));
    T sum{0};
    for (std::size_t i = first; i < first + n; ++i) sum -= labels[i] * log_of(logits[i]);
    loss[row] = sum;
  });
}

template <class Label>
std::size_t checked_label(Label label, std::size_t row, std::size_t classes) {
  internal::require(label >= 0 && static_cast<std::size_t>(label) < classes,
                    "expected labels in 0 .. ", classes - 1, ", got ", label, " in row ", row,
                    "; number the classes from 0");
  return static_cast<std::size_t>(label);
}

template <class T, class Label>
void sparse_loss(const KernelArgs& args) {
  const auto labels = args.in<Label>(0);
  const auto logits = args.in<T>(1);
  const auto loss = args.out<T>(0);
  for_each_row(args.inputs[1].shape(), [&](std::size_t row, std::size_t first, std::size_t n) {
    const std::size_t label = checked_label(labels[row], row, n);
    loss[row] = -LogSoftmax<T>(logits.subspan(first, n))(logits[first + label]);
  });
}

template <class T, class Label>
void sparse_grad(const KernelArgs& args) {
  const auto labels = args.in<Label>(0);
  const auto logits = args.in<T>(1), dy = args.in<T>(2);
  const auto dx = args.out<T>(0);
  for_each_row(args.inputs[1].shape(), [&](std::size_t row, std::size_t first, std::size_t n) {
    const std::size_t label = checked_label(labels[row], row, n);
    const LogSoftmax<T> log_of(logits.subspan(first, n));
    for (std::size_t i = first; i < first + n; ++i) {
      const T probability = std::exp(log_of(logits[i]));
      dx[i] = (i == first + label ? probability - T{1} : probability) * dy[row];
    }
  });
}

template <class Label>
void sparse_softmax_cross_entropy(const KernelArgs& args) {
  visit_arithmetic_floating(args.inputs[1].dtype(), "sparse_softmax_cross_entropy",
                            [&]<class T>() { sparse_loss<T, Label>(args); });
}

template <class Label>
void sparse_softmax_cross_entropy_grad(const KernelArgs& args) {
  visit_arithmetic_floating(args.inputs[1].dtype(), "sparse_softmax_cross_entropy_grad",
                            [&]<class T>() { sparse_grad<T, Label>(args); });
}

template <class T>
void register_softmax_for(KernelTable& table) {
  constexpr DType dtype = dtype_of<T>();
  table.set(OpId::kSoftmax, dtype, softmax<T>);
  table.set(OpId::kLogSoftmax, dtype, log_softmax<T>);
  table.set(OpId::kSoftmaxGrad, dtype, softmax_grad<T>);
  table.set(OpId::kLogSoftmaxGrad, dtype, log_softmax_grad<T>);
  table.set(OpId::kSoftmaxCrossEntropy, dtype, softmax_cross_entropy<T>);
}

template <class Label>
void register_sparse_for(KernelTable& table) {
  constexpr DType dtype = dtype_of<Label>();
  table.set(OpId::kSparseSoftmaxCrossEntropy, dtype, sparse_softmax_cross_entropy<Label>);
  table.set(OpId::kSparseSoftmaxCrossEntropyGrad, dtype, sparse_softmax_cross_entropy_grad<Label>);
}

}  // namespace

void register_softmax_reference_kernels(KernelTable& table) {
  register_softmax_for<float>(table);
  register_softmax_for<double>(table);
  register_sparse_for<std::int32_t>(table);
  register_sparse_for<std::int64_t>(table);
}

}  // namespace tutti::internal
