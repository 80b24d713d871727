// Simulates cuBLASLt with plain loops. Also stores the settings and counts that the simulated
// cuDNN shares.
// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <array>
#include <cstring>
#include <optional>

#include "tests/cuda_simulation/math_simulation.h"
#include "tests/cuda_simulation/simulation.h"

namespace tutti::cuda_simulation {
namespace {

struct Library {
  bool is_open = true;
};
struct Layout {
  cudaDataType type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, stride = 0;
  std::int32_t batch = 1;
};
struct Operation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Preference {
  std::uint64_t max_workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<std::uint32_t, 4> alignment{256, 256, 256, 256};  // A, B, C, D
};

/// Copies an attribute if `bytes` is exactly the size of its type.
template <class T>
cublasStatus_t assign(T& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

std::optional<DType> dtype_of_cuda(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return DType::kFloat32;
    case CUDA_R_64F:
      return DType::kFloat64;
    case CUDA_R_16BF:
      return DType::kBFloat16;
    case CUDA_R_16F:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

/// Complete description of one matrix multiplication.
struct Product {
  DType dtype = DType::kFloat32;
  Operation operation;
  Layout a, b, d;
  std::int64_t m = 0, n = 0, k = 0;
};

bool is_stored_well(const Layout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.batch > 0 &&
         layout.leading >= static_cast<std::int64_t>(layout.rows);
}

bool types_fit(const Operation& operation, DType dtype) {
  const bool in_double = dtype == DType::kFloat64;
  if (in_double != (operation.scale == CUDA_R_64F)) return false;
  if (operation.compute == CUBLAS_COMPUTE_64F) return in_double;
  if (operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32) return dtype == DType::kFloat32;
  return operation.compute == CUBLAS_COMPUTE_32F && !in_double;
}

/// Combines the operation and the layouts into `product`; returns an error status if they do not
/// match.
cublasStatus_t product_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d, Product& product) {
  const auto op = handles<Operation>().find(operation);
  const auto la = handles<Layout>().find(a), lb = handles<Layout>().find(b),
             lc = handles<Layout>().find(c), ld = handles<Layout>().find(d);
  if (!op || !la || !lb || !lc || !ld) return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_stored_well(*la) || !is_stored_well(*lb) || !is_stored_well(*ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto dtype = dtype_of_cuda(ld->type);
  if (!dtype || la->type != ld->type || lb->type != ld->type || lc->type != ld->type ||
      !types_fit(*op, *dtype)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto rows = [](const Layout& l, bool transposed) {
    return transposed ? l.columns : l.rows;
  };
  const bool ta = op->transpose_a == CUBLAS_OP_T, tb = op->transpose_b == CUBLAS_OP_T;
  if (rows(*la, ta) != ld->rows || rows(*lb, !tb) != ld->columns ||
      rows(*la, !ta) != rows(*lb, tb) || lc->rows != ld->rows || lc->columns != ld->columns ||
      la->batch != ld->batch || lb->batch != ld->batch || ld->batch > 65'535) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  product = {*dtype,
             *op,
             *la,
             *lb,
             *ld,
             static_cast<std::int64_t>(ld->rows),
             static_cast<std::int64_t>(ld->columns),
             static_cast<std::int64_t>(rows(*la, !ta))};
  return CUBLAS_STATUS_SUCCESS;
}

/// Contents of a simulated algorithm, which describe the problem for which it was chosen.
struct Algorithm {
  std::uint64_t magic, workspace, m, n, k;
  std::array<std::uint16_t, 4> alignment;  // alignments of A, B and D; the last element is unused
  std::uint64_t epilogue, unused;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
constexpr std::uint64_t kMagic = 0x7475747469626c61;

double operand(const Product& p, const Layout& layout, const void* data, std::int64_t batch,
               std::int64_t row, std::int64_t column, bool transposed) {
  if (transposed) std::swap(row, column);
  const double value =
      element(p.dtype, data, batch * layout.stride + column * layout.leading + row);
  return p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? as_tf32(value) : value;
}

void multiply(const Product& p, double alpha, const void* a, const void* b, double beta,
              const void* c, void* d) {
  for (std::int64_t batch = 0; batch < p.d.batch; ++batch) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      for (std::int64_t row = 0; row < p.m; ++row) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < p.k; ++i) {
          sum += operand(p, p.a, a, batch, row, i, p.operation.transpose_a == CUBLAS_OP_T) *
                 operand(p, p.b, b, batch, i, column, p.operation.transpose_b == CUBLAS_OP_T);
        }
        const std::int64_t at = batch * p.d.stride + column * p.d.leading + row;
        double value = alpha * sum;
        if (beta != 0.0) value += beta * element(p.dtype, c, at);
        if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
          value += element(p.dtype, p.operation.bias, row);
        }
        set_element(p.dtype, d, at, value);
      }
    }
  }
}

double scale_of(const Product& p, const void* scale) {
  return p.dtype == DType::kFloat64 ? *static_cast<const double*>(scale)
                                    : static_cast<double>(*static_cast<const float*>(scale));
}

/// Returns the workspace size in bytes: the size of a float32 result if k >= 64 and `preference`
/// allows a split sum and this size, otherwise 0.
std::uint64_t workspace_for(const Product& p, const Preference& preference) {
  const auto bytes = static_cast<std::uint64_t>(p.m * p.n * p.d.batch) * 4;
  const bool allowed = (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  return allowed && p.k >= 64 && bytes <= preference.max_workspace ? bytes : 0;
}

struct State {
  Mutex mutex;
  MathBehavior behavior;
  MathCounts counts;
};

State& state() {
  static State state;
  return state;
}

}  // namespace

void set_math_behavior(const MathBehavior& behavior) {
  const MutexLock lock(state().mutex);
  state().behavior = behavior;
}

MathBehavior math_behavior() {
  const MutexLock lock(state().mutex);
  return state().behavior;
}

MathCounts math_counts() {
  const MutexLock lock(state().mutex);
  return state().counts;
}

void reset_math_counts() {
  const MutexLock lock(state().mutex);
  state().counts = {};
}

namespace internal {

void count_math(const MathCounts& more) {
  const MutexLock lock(state().mutex);
  MathCounts& counts = state().counts;
  counts.blas_heuristics += more.blas_heuristics;
  counts.products += more.products;
  counts.dnn_heuristics += more.dnn_heuristics;
  counts.plans += more.plans;
  counts.convolutions += more.convolutions;
  if (more.last_engine >= 0) counts.last_engine = more.last_engine;
}

}  // namespace internal

}  // namespace tutti::cuda_simulation

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (math_behavior().refuses_handles) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(handles<Library>().add());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return handles<Library>().remove(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? 13 : 0;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_INVALID_VALUE";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "simulated cuBLASLt"; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      handles<Layout>().add(Layout{type, rows, columns, leading, 0, 1}));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return handles<Layout>().remove(layout) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, size_t bytes) {
  const auto found = handles<Layout>().find(layout);
  if (!found) return CUBLAS_STATUS_INVALID_VALUE;
  if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return assign(found->batch, value, bytes);
  if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return assign(found->stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  Operation made;
  made.compute = compute;
  made.scale = scale;
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(handles<Operation>().add(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return handles<Operation>().remove(operation) ? CUBLAS_STATUS_SUCCESS
                                                : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  const auto found = handles<Operation>().find(operation);
  if (!found) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(found->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(found->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(found->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(found->bias, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(handles<Preference>().add());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return handles<Preference>().remove(preference) ? CUBLAS_STATUS_SUCCESS
                                                  : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  const auto found = handles<Preference>().find(preference);
  if (!found) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(found->max_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(found->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(found->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                    bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* num_results) {
  const auto preferred = handles<Preference>().find(preference);
  if (!handles<Library>().find(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!preferred || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  internal::count_math({.blas_heuristics = 1});
  *num_results = 0;
  Product p;
  const cublasStatus_t status = product_of(operation, a, b, c, d, p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const bool with_bias = p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (p.operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !with_bias) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const MathBehavior behavior = math_behavior();
  if (behavior.refuses_products ||
      (with_bias && (behavior.refuses_bias || p.dtype == tutti::DType::kFloat64))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto align = [&](int i) { return static_cast<std::uint16_t>(preferred->alignment[i]); };
  const Algorithm algorithm{kMagic,
                            workspace_for(p, *preferred),
                            static_cast<std::uint64_t>(p.m),
                            static_cast<std::uint64_t>(p.n),
                            static_cast<std::uint64_t>(p.k),
                            {align(0), align(1), align(3), 0},
                            p.operation.epilogue,
                            0};
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0f;
  *num_results = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (!handles<Library>().find(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  Product p;
  const cublasStatus_t status = product_of(operation, a_layout, b_layout, c_layout, d_layout, p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm{};
  if (algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (algorithm.magic != kMagic || algorithm.epilogue != p.operation.epilogue ||
      algorithm.m != static_cast<std::uint64_t>(p.m) ||
      algorithm.n != static_cast<std::uint64_t>(p.n) ||
      algorithm.k != static_cast<std::uint64_t>(p.k)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool with_bias = p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!is_aligned(a, algorithm.alignment[0]) || !is_aligned(b, algorithm.alignment[1]) ||
      !is_aligned(d, algorithm.alignment[2]) || !is_device_memory(a) || !is_device_memory(b) ||
      !is_device_memory(d) || (with_bias && !is_device_memory(p.operation.bias)) ||
      workspace_bytes < algorithm.workspace ||
      (algorithm.workspace > 0 && (!is_device_memory(workspace) || !is_aligned(workspace, 256)))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const double scale = scale_of(p, alpha), old = scale_of(p, beta);
  const cudaError_t error =
      try_enqueue(stream, [=, bytes = static_cast<std::size_t>(algorithm.workspace)] {
        if (bytes > 0) std::memset(workspace, 0x5a, bytes);
        multiply(p, scale, a, b, old, c, d);
      });
  if (error != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  internal::count_math({.products = 1});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
