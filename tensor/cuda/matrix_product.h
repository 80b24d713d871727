// Row-major, batched matrix products with cuBLASLt, with an optional bias in the same pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "tensor/cuda/kernels.h"

namespace tutti::cuda {

/// A product c [batch, m, n] = a [batch, m, k] b [batch, k, n] + bias [n], all row-major.
/// `transpose_x`: x is stored with its last two dimensions exchanged. `x_is_shared`: x has one
/// matrix for the whole batch. All sizes are > 0.
struct MatrixProduct {
  DType dtype = DType::kFloat32;
  std::int64_t m = 1, n = 1, k = 1, batch = 1;
  bool transpose_a = false, transpose_b = false;
  bool a_is_shared = false, b_is_shared = false;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // nullptr if there is no bias
  void* c = nullptr;
};

struct MatrixPlan;  // descriptors and algorithm; defined in matrix_product.cc

/// Cached algorithms for matrix products: cuBLASLt chooses one for each kind of product.
class MatrixPlans {
 public:
  /// Everything on which the choice of an algorithm depends, including the alignment of pointers.
  using Key = std::array<std::int64_t, 14>;

  MatrixPlans();
  ~MatrixPlans();
  MatrixPlans(const MatrixPlans&) = delete;
  MatrixPlans& operator=(const MatrixPlans&) = delete;

  const MatrixPlan& get(const MatrixProduct& product, const KernelCall& call);
  std::size_t size() const { return plans_.size(); }

 private:
  std::map<Key, std::unique_ptr<MatrixPlan>> plans_;
};

/// Queues the product, followed by `activation`, on the stream of `call`. Accumulates in float32
/// (float64 for float64). Throws kUnimplemented if cuBLASLt has no algorithm.
void multiply(const MatrixProduct& product, FusedActivation activation, const KernelCall& call);

}  // namespace tutti::cuda
