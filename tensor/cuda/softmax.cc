// Softmax, its logarithm and their gradients, computed with cuDNN.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/math_libraries.h"

namespace tutti::cuda {
namespace {

constexpr std::int64_t kMaxElements =
    (std::int64_t{1} << 31) - 1;  // cuDNN's limit on the number of elements

/// A matrix [rows, classes] as a cuDNN tensor [rows, classes, 1, 1].
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t classes) {
    check(cudnnCreateTensorDescriptor(&descriptor_), "cudnnCreateTensorDescriptor");
    const cudnnStatus_t status =
        cudnnSetTensor4dDescriptor(descriptor_, CUDNN_TENSOR_NCHW, cudnn_type(dtype),
                                   static_cast<int>(rows), static_cast<int>(classes), 1, 1);
    if (status == CUDNN_STATUS_SUCCESS) return;
    (void)cudnnDestroyTensorDescriptor(descriptor_);
    check(status, "cudnnSetTensor4dDescriptor");
  }
  ~Matrix() { (void)cudnnDestroyTensorDescriptor(descriptor_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  cudnnTensorDescriptor_t get() const { return descriptor_; }

 private:
  cudnnTensorDescriptor_t descriptor_ = nullptr;
};

/// Calls body(matrix, byte offset) for consecutive groups of rows, each small enough for cuDNN.
template <class Body>
void for_each_part(const DeviceTensor& tensor, const Body& body) {
  if (tensor.shape.num_elements() == 0) return;
  const std::int64_t classes = tensor.shape.dim(-1);
  const std::int64_t rows = tensor.shape.num_elements() / classes;
  if (classes > kMaxElements) {
    fail(ErrorCode::kUnimplemented, "softmax on cuDNN: expected at most ", kMaxElements,
         " classes, got ", classes);
  }
  const std::int64_t rows_of_part = std::min(rows, kMaxElements / classes);
  for (std::int64_t row = 0; row < rows; row += rows_of_part) {
    body(Matrix(tensor.dtype, std::min(rows_of_part, rows - row), classes),
         static_cast<std::size_t>(row * classes) * size_of(tensor.dtype));
  }
}

/// 1 and 0 in the type that cuDNN expects for tensors of `dtype`.
struct Scales {
  explicit Scales(DType dtype) : in_double(dtype == DType::kFloat64) {}
  const void* one() const { return in_double ? static_cast<const void*>(&one_double) : &one_float; }
  const void* zero() const {
    return in_double ? static_cast<const void*>(&zero_double) : &zero_float;
  }
  bool in_double;
  double one_double = 1.0, zero_double = 0.0;
  float one_float = 1.0f, zero_float = 0.0f;
};

template <cudnnSoftmaxAlgorithm_t algorithm>
void forward(const KernelCall& call) {
  const Scales scales(call.inputs[0].dtype);
  for_each_part(call.inputs[0], [&](const Matrix& matrix, std::size_t offset) {
    check(
        cudnnSoftmaxForward(call.libraries.dnn(call.stream), algorithm, CUDNN_SOFTMAX_MODE_INSTANCE,
                            scales.one(), matrix.get(), call.in<std::byte>(0) + offset,
                            scales.zero(), matrix.get(), call.out<std::byte>(0) + offset),
        "cudnnSoftmaxForward");
  });
}

template <cudnnSoftmaxAlgorithm_t algorithm>
void backward(const KernelCall& call) {
  const Scales scales(call.inputs[0].dtype);
  for_each_part(call.inputs[0], [&](const Matrix& matrix, std::size_t offset) {
    check(cudnnSoftmaxBackward(call.libraries.dnn(call.stream), algorithm,
                               CUDNN_SOFTMAX_MODE_INSTANCE, scales.one(), matrix.get(),
                               call.in<std::byte>(0) + offset, matrix.get(),
                               call.in<std::byte>(1) + offset, scales.zero(), matrix.get(),
                               call.out<std::byte>(0) + offset),
          "cudnnSoftmaxBackward");
  });
}

}  // namespace

void register_softmax_kernels(KernelTable& table) {
  table.set(OpId::kSoftmax, kFloatingTypes, forward<CUDNN_SOFTMAX_ACCURATE>);
  table.set(OpId::kLogSoftmax, kFloatingTypes, forward<CUDNN_SOFTMAX_LOG>);
  table.set(OpId::kSoftmaxGrad, kFloatingTypes, backward<CUDNN_SOFTMAX_ACCURATE>);
  table.set(OpId::kLogSoftmaxGrad, kFloatingTypes, backward<CUDNN_SOFTMAX_LOG>);
}

}  // namespace tutti::cuda
