// Matrix products as three loops.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tutti/tensor/cpu/activation.h"
#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

template <class T>
struct Matrix {
  const T* data;
  std::int64_t row_stride, column_stride;
  T operator()(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// A matrix [rows, columns] stored as it is, or stored transposed.
template <class T>
Matrix<T> matrix(const T* data, const Shape& stored, bool transposed) {
  const std::int64_t width = stored.dim(-1);
  return transposed ? Matrix<T>{data, 1, width} : Matrix<T>{data, width, 1};
}

template <class T>
void matmul(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<MatMulAttributes>();
  const Shape& sa = args.inputs[0].shape();
  const Shape& sb = args.inputs[1].shape();
  const Shape& sc = args.outputs[0].shape();
  const std::int64_t m = sc.dim(-2), n = sc.dim(-1);
  const std::int64_t k = sa.dim(attributes.transpose_a ? -2 : -1);
  const std::int64_t batch = sc.num_elements() / (m * n);
  const T* bias = args.inputs.size() > 2 ? args.in<T>(2).data() : nullptr;
  T* c = args.out<T>(0).data();
  for (std::int64_t i = 0; i < batch; ++i) {
    const T* a_data = args.in<T>(0).data() + (sa.rank() > 2 ? i * m * k : 0);
    const T* b_data = args.in<T>(1).data() + (sb.rank() > 2 ? i * k * n : 0);
    const auto a = matrix(a_data, sa, attributes.transpose_a);
    const auto b = matrix(b_data, sb, attributes.transpose_b);
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        T sum = bias ? bias[column] : T{0};
        for (std::int64_t j = 0; j < k; ++j) sum += a(row, j) * b(j, column);
        *c++ = activated(attributes.activation, sum);
      }
    }
  }
}

}  // namespace

void register_matmul_reference_kernels(KernelTable& table) {
  table.set(OpId::kMatMul, DType::kFloat32, matmul<float>);
  table.set(OpId::kMatMul, DType::kFloat64, matmul<double>);
}

}  // namespace tutti::internal
