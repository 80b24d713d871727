// kMatMul on cuBLASLt.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/matrix_product.h"

namespace tutti::cuda {
namespace {

MatrixProduct product_of(const KernelCall& call) {
  const auto& attributes = call.attributes_as<MatMulAttributes>();
  const Shape& a = call.inputs[0].shape;
  const Shape& b = call.inputs[1].shape;
  const Shape& c = call.outputs[0].shape;
  MatrixProduct p;
  p.dtype = call.inputs[0].dtype;
  p.m = c.dim(-2);
  p.n = c.dim(-1);
  p.k = a.dim(attributes.transpose_a ? -2 : -1);
  p.batch = c.num_elements() / (p.m * p.n);
  p.transpose_a = attributes.transpose_a;
  p.transpose_b = attributes.transpose_b;
  p.a_is_shared = a.rank() == 2;
  p.b_is_shared = b.rank() == 2;
  p.a = call.inputs[0].data;
  p.b = call.inputs[1].data;
  p.bias = call.inputs.size() > 2 ? call.inputs[2].data : nullptr;
  p.c = call.outputs[0].data;
  // Rows of all matrices times one matrix: one large product instead of many small ones.
  if (p.batch > 1 && p.b_is_shared && !p.a_is_shared && !p.transpose_a) {
    p.m *= std::exchange(p.batch, 1);
  }
  return p;
}

void matmul(const KernelCall& call) {
  const DeviceTensor& c = call.outputs[0];
  if (c.shape.num_elements() == 0) return;
  const FusedActivation activation = call.attributes_as<MatMulAttributes>().activation;
  const MatrixProduct product = product_of(call);
  if (product.k == 0) {  // sums of nothing
    fill(c, 0.0, call.stream);
    add_bias_and_activate(c, product.bias, activation, call.stream);
  } else {
    multiply(product, activation, call);
  }
}

}  // namespace

void register_matmul_kernels(KernelTable& table) {
  table.set(OpId::kMatMul, kFloatingTypes, matmul);
}

}  // namespace tutti::cuda
