// Matrix products on cuBLASLt.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/matrix_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <utility>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"
#include "tensor/matmul_extent.h"

namespace tutti::cuda {

// cuBLASLt is column-major: a row-major c = a b is a column-major c^T = b^T a^T, so the operands
// are swapped, without a copy.

namespace {

constexpr std::size_t kMaxWorkspaceBytes = std::size_t{32} << 20;  // recommended for Hopper
constexpr std::int64_t kMaxBatch = 65'535;                         // limit on a grid's z dimension

/// Owner of a cuBLASLt descriptor.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (void)destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }
  Handle* address() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat64:
      return CUDA_R_64F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      fail(ErrorCode::kUnimplemented,
           "matrix product on cuBLAS: expected a floating-point type, got ", to_string(dtype));
  }
}

cublasComputeType_t compute_type(DType dtype, const MathOptions& options) {
  if (dtype == DType::kFloat64) return CUBLAS_COMPUTE_64F;
  const bool on_tensor_cores = dtype == DType::kFloat32 && options.allow_tf32;
  return on_tensor_cores ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t name, T value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t name, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), name, &value, sizeof(value)),
        "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

/// Describes a row-major [rows, columns] matrix as a column-major [columns, rows] matrix.
void make_layout(Layout& layout, const MatrixProduct& p, std::int64_t rows, std::int64_t columns,
                 bool is_shared) {
  check(cublasLtMatrixLayoutCreate(layout.address(), data_type(p.dtype),
                                   static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  if (p.batch == 1) return;
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(p.batch));
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
      is_shared ? std::int64_t{0} : rows * columns);
}

std::uint32_t alignment_for_cublas(const void* pointer) {
  return static_cast<std::uint32_t>(alignment_of(pointer, 256));
}

MatrixPlans::Key key_of(const MatrixProduct& p) {
  return {static_cast<std::int64_t>(p.dtype),
          p.m,
          p.n,
          p.k,
          p.batch,
          p.transpose_a,
          p.transpose_b,
          p.a_is_shared,
          p.b_is_shared,
          p.bias != nullptr,
          alignment_for_cublas(p.a),
          alignment_for_cublas(p.b),
          alignment_for_cublas(p.bias),
          alignment_for_cublas(p.c)};
}

}  // namespace

struct MatrixPlan {
  Operation operation;
  Layout first, second, result;  // layouts of b, a and c
  bool is_supported = false;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;

  void describe(const MatrixProduct& p, const MathOptions& options) {
    check(cublasLtMatmulDescCreate(operation.address(), compute_type(p.dtype, options),
                                   p.dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    make_layout(first, p, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_is_shared);
    make_layout(second, p, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_is_shared);
    make_layout(result, p, p.m, p.n, false);
  }

  void choose_algorithm(const MatrixProduct& p, MathLibraries& libraries) {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kMaxWorkspaceBytes});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_for_cublas(p.b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_for_cublas(p.a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_for_cublas(p.c));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_for_cublas(p.c));
    if (is_half(p.dtype)) {  // partial sums are added in float32, not in 16 bits
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    }
    cublasLtMatmulHeuristicResult_t found{};
    int num_found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        libraries.blas(), operation.get(), first.get(), second.get(), result.get(), result.get(),
        preference.get(), 1, &found, &num_found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && !num_found)) {
      return;
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    is_supported = found.state == CUBLAS_STATUS_SUCCESS;
    algorithm = found.algo;
    workspace_bytes = found.workspaceSize;
  }
};

MatrixPlans::MatrixPlans() = default;
MatrixPlans::~MatrixPlans() = default;

const MatrixPlan& MatrixPlans::get(const MatrixProduct& product, const KernelCall& call) {
  std::unique_ptr<MatrixPlan>& plan = plans_[key_of(product)];
  if (!plan) {
    const UncapturedScope not_captured;  // the library may load code
    auto made = std::make_unique<MatrixPlan>();
    made->describe(product, call.libraries.options());
    made->choose_algorithm(product, call.libraries);
    plan = std::move(made);
  }
  return *plan;
}

namespace {

void launch_product(const MatrixProduct& p, const MatrixPlan& plan, const KernelCall& call) {
  if (p.bias != nullptr) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  void* const workspace =
      plan.workspace_bytes > 0 ? call.workspace.allocate(plan.workspace_bytes) : nullptr;
  const double one = 1.0, zero = 0.0;
  const float one_float = 1.0f, zero_float = 0.0f;
  const bool in_double = p.dtype == DType::kFloat64;
  const void* const alpha = in_double ? static_cast<const void*>(&one) : &one_float;
  const void* const beta = in_double ? static_cast<const void*>(&zero) : &zero_float;
  check(cublasLtMatmul(call.libraries.blas(), plan.operation.get(), alpha, p.b, plan.first.get(),
                       p.a, plan.second.get(), beta, p.c, plan.result.get(), p.c, plan.result.get(),
                       &plan.algorithm, workspace, plan.workspace_bytes, call.stream),
        "cublasLtMatmul");
}

/// Computes the product. Returns false, without any computation, if cuBLASLt cannot add this bias.
bool try_multiply(const MatrixProduct& p, const KernelCall& call) {
  const MatrixPlan& plan = call.libraries.matrix_plans().get(p, call);
  if (plan.is_supported) {
    launch_product(p, plan, call);
    return true;
  }
  if (p.bias != nullptr) return false;
  fail(ErrorCode::kUnimplemented, "matrix product [", p.batch, ", ", p.m, ", ", p.k, "] x [", p.k,
       ", ", p.n, "]: cuBLAS has no algorithm for ", to_string(p.dtype));
}

MatrixProduct part_of_batch(const MatrixProduct& p, std::int64_t first, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  MatrixProduct part = p;
  part.batch = count;
  if (!p.a_is_shared) part.a = static_cast<const std::byte*>(p.a) + first * p.m * p.k * size;
  if (!p.b_is_shared) part.b = static_cast<const std::byte*>(p.b) + first * p.k * p.n * size;
  part.c = static_cast<std::byte*>(p.c) + first * p.m * p.n * size;
  return part;
}

}  // namespace

void multiply(const MatrixProduct& product, FusedActivation activation, const KernelCall& call) {
  for (std::int64_t first = 0; first < product.batch; first += kMaxBatch) {
    MatrixProduct part = part_of_batch(product, first, std::min(kMaxBatch, product.batch - first));
    const bool bias_is_added = try_multiply(part, call);
    const void* const missing_bias = bias_is_added ? nullptr : std::exchange(part.bias, nullptr);
    if (!bias_is_added) (void)try_multiply(part, call);
    // The activation is not left to cuBLASLt, which does not define the ReLU of NaN; NaN must stay
    // NaN.
    add_bias_and_activate({part.c, {part.batch * part.m, part.n}, part.dtype}, missing_bias,
                          activation, call.stream);
  }
}

// The operation matmul().

namespace {

MatrixProduct product_of(const KernelCall& call) {
  const auto& attributes = call.attributes_as<MatMulAttributes>();
  const internal::MatMulExtent extent(attributes, call.inputs[0].shape, call.inputs[1].shape,
                                      call.outputs[0].shape);
  MatrixProduct p;
  p.dtype = call.inputs[0].dtype;
  p.m = extent.m;
  p.n = extent.n;
  p.k = extent.k;
  p.batch = extent.batch;
  p.transpose_a = attributes.transpose_a;
  p.transpose_b = attributes.transpose_b;
  p.a_is_shared = extent.a_is_shared;
  p.b_is_shared = extent.b_is_shared;
  p.a = call.inputs[0].data;
  p.b = call.inputs[1].data;
  p.bias = call.inputs.size() > 2 ? call.inputs[2].data : nullptr;
  p.c = call.outputs[0].data;
  return p;
}

void matmul(const KernelCall& call) {
  const DeviceTensor& c = call.outputs[0];
  if (c.shape.num_elements() == 0) return;
  const FusedActivation activation = call.attributes_as<MatMulAttributes>().activation;
  const MatrixProduct product = product_of(call);
  if (product.k == 0) {  // all results are empty sums
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
