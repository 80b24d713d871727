// Tests MathLibraries, which owns the handles of cuBLAS and cuDNN: settings, errors, matrix
// products and convolution engines.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/math_libraries.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "tensor/cuda/convolution_plans.h"
#include "tensor/cuda/matrix_product.h"
#include "tests/cuda/device_call.h"
#include "tests/cuda_simulation/math_simulation.h"
#include "tests/support/scopes.h"

namespace tutti::testing::math_libraries_test {
using cuda_simulation::math_counts;
using cuda_simulation::set_math_behavior;
using test_scopes::EnvironmentScope;

/// Device memory that the destructor frees.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) {
    cuda::check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// Workspace that refuses requests for more than `limit` bytes.
class TestWorkspace : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > limit) {
      fail(ErrorCode::kResourceExhausted, "gpu:0: no memory for a workspace of ", bytes, " bytes");
    }
    largest = std::max(largest, bytes);
    return pieces_.emplace_back(std::make_unique<DeviceBytes>(bytes))->get();
  }
  void clear() { pieces_.clear(); }
  std::size_t limit = std::size_t{64} << 20;
  std::size_t largest = 0;

 private:
  std::vector<std::unique_ptr<DeviceBytes>> pieces_;
};

/// Libraries and workspace of one device. Resets the simulation's settings and counts.
class MathRig {
 public:
  MathRig() {
    cuda_simulation::set_math_behavior({});
    cuda_simulation::reset_math_counts();
  }
  ~MathRig() { cuda_simulation::set_math_behavior({}); }
  MathRig(const MathRig&) = delete;
  MathRig& operator=(const MathRig&) = delete;

  std::vector<Tensor> run(const OpCall& call) {
    std::vector<Tensor> results = run_on_device(call, {0, &libraries, &workspace});
    workspace.clear();
    return results;
  }
  /// Runs `call` and compares the results with those of the reference kernels.
  void expect_like_reference(const OpCall& call, double ulps = 100.0) {
    SCOPED_TRACE(OpCase{call}.name());
    const std::vector<Tensor> actual = run(call);
    const std::vector<Tensor> expected = run_kernel(reference_kernels(), call);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_close(actual[i], expected[i], ulps);
    }
  }

  cuda::MathLibraries libraries{cuda::MathOptions{}};
  TestWorkspace workspace;
};

TEST(CudaMathLibraries, ReadSettingsFromEnvironment) {
  EXPECT_FALSE(cuda::MathOptions::from_environment().allow_tf32);
  EXPECT_TRUE(cuda::MathOptions::from_environment().deterministic);
  EXPECT_EQ(cuda::MathOptions::from_environment().num_measured_plans, 0);
  const EnvironmentScope tf32("TUTTI_TF32", "1"), repeatable("TUTTI_CUDNN_DETERMINISTIC", "0"),
      tune("TUTTI_CUDNN_TUNE", "1");
  EXPECT_TRUE(cuda::MathOptions::from_environment().allow_tf32);
  EXPECT_FALSE(cuda::MathOptions::from_environment().deterministic);
  EXPECT_EQ(cuda::MathOptions::from_environment().num_measured_plans, 8);
}

TEST(CudaMathLibraries, RejectInvalidSettings) {
  const EnvironmentScope tf32("TUTTI_TF32", "yes");
  EXPECT_EQ(error_of([] { (void)cuda::MathOptions::from_environment(); }),
            "TUTTI_TF32: expected 0 or 1, got 'yes'");
}

TEST(CudaMathLibraries, ReportVersions) {
  EXPECT_EQ(cuda::math_libraries_description(), "cuBLAS 13.0.0, cuDNN 9.0.0");
}

TEST(CudaMathLibraries, CreateHandlesOnFirstUse) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_handles = true});
  cuda::MathLibraries libraries{cuda::MathOptions{}};
  EXPECT_EQ(coded_error_of([&] { (void)libraries.dnn(nullptr); }),
            "INTERNAL: cudnnCreate: cuDNN reports CUDNN_STATUS_NOT_INITIALIZED: no driver");
  EXPECT_EQ(error_of([&] { (void)libraries.blas(); }),
            "cublasLtCreate: cuBLAS reports CUBLAS_STATUS_NOT_INITIALIZED: simulated "
            "cuBLASLt");
  cuda_simulation::set_math_behavior({});
  EXPECT_EQ(libraries.blas(), libraries.blas());
  EXPECT_EQ(libraries.dnn(nullptr), libraries.dnn(nullptr));
}

TEST(CudaMathLibraries, FailureStatusThrowsError) {
  MathRig rig;
  EXPECT_THROW(cuda::check(CUDNN_STATUS_EXECUTION_FAILED, "x"), Error);
  EXPECT_ERROR(cuda::check(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "x"),
               kResourceExhausted, "x");
  EXPECT_ERROR(cuda::check(CUBLAS_STATUS_ALLOC_FAILED, "x"), kResourceExhausted, "x");
}

TEST(CudaMathLibraries, SimulatedCudnnRejectsInvalidDescriptors) {
  MathRig rig;
  cuda::BackendDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_THROW(tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1.0f), Error);
  EXPECT_THROW(tensor.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 0), Error);
  EXPECT_THROW(tensor.finalize(), Error);
  cuda::ConvolutionProblem problem;
  problem.x = {1, 4, 4, 2};
  problem.filter = {3, 3, 3, 2};
  problem.y = {1, 4, 4, 3};  // deliberately wrong: without padding, y is 2 x 2
  EXPECT_THROW(cuda::ConvolutionGraph(problem, rig.libraries.dnn(nullptr)), Error);
}

/// Workspace that was allocated in advance, because nothing can be allocated during a capture.
class PreparedWorkspace : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    used_ = (used_ + 255) / 256 * 256;
    if (used_ + bytes > kBytes) fail(ErrorCode::kResourceExhausted, "PreparedWorkspace: full");
    return memory_.get() + std::exchange(used_, used_ + bytes);
  }

 private:
  static constexpr std::size_t kBytes = 4 << 20;
  DeviceBytes memory_{kBytes};
  std::size_t used_ = 0;
};

// During the capture, handles and plans are created, but engines are not benchmarked.
TEST(CudaMathLibraries, CapturedCallsRunAtEachLaunch) {
  MathRig rig;
  const DeviceArena arena;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  PreparedWorkspace workspace;
  const DeviceBytes x(64 * 4), filter(18 * 4), y(32 * 4);
  const std::vector<float> ones(64, 1.0f);
  ASSERT_EQ(cudaMemcpy(x.get(), ones.data(), 64 * 4, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(filter.get(), ones.data(), 18 * 4, cudaMemcpyHostToDevice), cudaSuccess);
  const DeviceTensor inputs[] = {{x.get(), {1, 4, 8, 2}, DType::kFloat32},
                                 {filter.get(), {3, 3, 2, 1}, DType::kFloat32}};
  const DeviceTensor outputs[] = {{y.get(), {1, 4, 8, 1}, DType::kFloat32}};
  const Attributes attributes = Conv2dAttributes{1, 1, 1, 1, 1, 1, FusedActivation::kRelu};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(arena.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  device_kernels().find(OpId::kConv2d, DType::kFloat32)(
      {inputs, outputs, attributes, nullptr, arena.stream(), rig.libraries, workspace});
  ASSERT_EQ(cudaStreamEndCapture(arena.stream(), &graph), cudaSuccess);
  EXPECT_EQ(cuda_simulation::math_counts().plans, 1);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  std::vector<float> result(32);
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(cudaMemsetAsync(y.get(), 0, 32 * 4, arena.stream()), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, arena.stream()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(arena.stream()), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(result.data(), y.get(), 32 * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(result[0], 8.0f);   // corner: the filter covers 2 x 2 pixels of 2 channels
    EXPECT_EQ(result[9], 18.0f);  // interior: the filter covers 3 x 3 pixels
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
}

OpCall product_call(const Shape& a, const Shape& b, const Shape& c, bool with_bias,
                    DType dtype = DType::kFloat32) {
  OpCall call{OpId::kMatMul,
              {random_values(a, dtype, -1.0, 1.0, 1), random_values(b, dtype, -1.0, 1.0, 2)},
              {{c, dtype}},
              MatMulAttributes{}};
  if (with_bias) call.inputs.push_back(random_values({c.dim(-1)}, dtype, -1.0, 1.0, 3));
  return call;
}

TEST(CudaMatMul, AddsBiasWhenLibraryCannotFuseIt) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_bias = true});
  for (const OpCase& c : op_family("products").cases()) {
    if (c.call.inputs.size() == 3 && !c.has_special_numbers) {
      rig.expect_like_reference(c.call, c.ulps);
    }
  }
}

TEST(CudaMatMul, QueriesAlgorithmOncePerProductShapeAndType) {
  MathRig rig;
  const OpCall call = product_call({3, 5}, {5, 7}, {3, 7}, true);
  for (int i = 0; i < 3; ++i) (void)rig.run(call);
  EXPECT_EQ(math_counts().blas_heuristics, 1);
  EXPECT_EQ(math_counts().products, 3);
  (void)rig.run(product_call({3, 5}, {5, 7}, {3, 7}, true, DType::kFloat16));
  (void)rig.run(product_call({4, 5}, {5, 7}, {4, 7}, true));
  EXPECT_EQ(math_counts().blas_heuristics, 3);
  EXPECT_EQ(rig.libraries.matrix_plans().size(), 3u);
}

TEST(CudaMatMul, SplitsLargeBatchesIntoSeveralLaunches) {
  MathRig rig;
  constexpr std::int64_t kBatch = 70'000;
  rig.expect_like_reference(product_call({kBatch, 1, 2}, {kBatch, 2, 1}, {kBatch, 1, 1}, true));
  EXPECT_EQ(math_counts().products, 2);
}

TEST(CudaMatMul, BatchTimesSharedMatrixIsOneProduct) {
  MathRig rig;
  rig.expect_like_reference(product_call({9, 3, 4}, {4, 2}, {9, 3, 2}, false));
  EXPECT_EQ(math_counts().products, 1);
  EXPECT_EQ(rig.libraries.matrix_plans().size(), 1u);
}

// TF32 has too few fraction bits for 1 + 2^-12.
TEST(CudaMatMul, RoundsFloat32ToTf32OnlyWhenAllowed) {
  const float value = 1.0f + 0x1p-12f;
  const OpCall call{OpId::kMatMul,
                    {Tensor::from<float>({1, 1}, {value}), Tensor::from<float>({1, 1}, {1.0f})},
                    {{{1, 1}, DType::kFloat32}},
                    MatMulAttributes{}};
  MathRig rig;
  EXPECT_EQ(rig.run(call)[0].item(), value);
  cuda::MathOptions options;
  options.allow_tf32 = true;
  rig.libraries.set_options(options);
  EXPECT_EQ(rig.run(call)[0].item(), 1.0f);
}

TEST(CudaMatMul, ErrorNamesTheUnsupportedProduct) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_products = true});
  EXPECT_EQ(
      coded_error_of([&] {
        (void)rig.run(product_call({3, 5}, {5, 7}, {3, 7}, true));
      }),
      "UNIMPLEMENTED: matrix product [1, 3, 5] x [5, 7]: cuBLAS has no algorithm for float32");
}

TEST(CudaMatMul, ErrorReportsMissingWorkspaceMemory) {
  MathRig rig;
  rig.workspace.limit = 16;
  EXPECT_ERROR((void)rig.run(product_call({8, 70}, {70, 16}, {8, 16}, false)), kResourceExhausted,
               "gpu:0");
}

Tensor some(const Shape& shape, DType dtype, std::uint64_t seed) {
  return random_values(shape, dtype, -1.0, 1.0, seed);
}

/// Convolution whose filter has `window` x `window` pixels, padded so that `y` is as large as `x`.
struct Convolution {
  Conv2dAttributes attributes() const {
    const std::int64_t pads = window / 2;
    return {1, 1, pads, pads, pads, pads};
  }
  OpCall forward(DType dtype = DType::kFloat32) const {
    return {OpId::kConv2d, {some(x, dtype, 1), some(filter, dtype, 2)}, {{y, dtype}}, attributes()};
  }
  OpCall forward_with_bias() const {
    OpCall call = forward();
    call.inputs.push_back(some({filter[3]}, DType::kFloat32, 3));
    return call;
  }
  OpCall backward_input() const {
    return {OpId::kConv2dBackwardInput,
            {some(y, DType::kFloat32, 4), some(filter, DType::kFloat32, 2)},
            {{x, DType::kFloat32}},
            attributes()};
  }
  OpCall backward_filter() const {
    return {OpId::kConv2dBackwardFilter,
            {some(x, DType::kFloat32, 1), some(y, DType::kFloat32, 4)},
            {{filter, DType::kFloat32}},
            attributes()};
  }

  std::int64_t window = 3;
  Shape x{2, 5, 6, 3}, y{2, 5, 6, 4};
  Shape filter{window, window, 3, 4};
};

TEST(CudaConvolution, OneByOneFilterUsesMatrixProduct) {
  MathRig rig;
  const Convolution c{1};
  (void)rig.run(c.forward_with_bias());
  (void)rig.run(c.backward_input());
  (void)rig.run(c.backward_filter());
  EXPECT_EQ(math_counts().products, 3);
  EXPECT_EQ(math_counts().convolutions, 0);
}

TEST(CudaConvolution, QueriesEngineOncePerProblem) {
  MathRig rig;
  for (int i = 0; i < 3; ++i) (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().dnn_heuristics, 1);
  EXPECT_EQ(math_counts().plans, 1);
  EXPECT_EQ(math_counts().convolutions, 3);
  (void)rig.run(Convolution{}.backward_input());
  EXPECT_EQ(rig.libraries.convolution_plans().size(), 2u);
}

TEST(CudaConvolution, UsesOnlyEnginesAllowedByOptions) {
  using namespace cuda_simulation;
  const auto engine = [](DType dtype, bool tf32, bool deterministic) {
    MathRig rig;
    cuda::MathOptions options;
    options.allow_tf32 = tf32;
    options.deterministic = deterministic;
    rig.libraries.set_options(options);
    (void)rig.run(Convolution{}.forward(dtype));
    return math_counts().last_engine;
  };
  EXPECT_EQ(engine(DType::kFloat32, true, true), kTensorCoreEngine);
  EXPECT_EQ(engine(DType::kFloat32, false, true), kLargeWorkspaceEngine);
  EXPECT_EQ(engine(DType::kFloat32, false, false), kNondeterministicEngine);
  EXPECT_EQ(engine(DType::kBFloat16, false, true), kTensorCoreEngine);
}

TEST(CudaConvolution, TriesNextEngineAfterFailure) {
  using namespace cuda_simulation;
  MathRig rig;
  set_math_behavior({.refused_engines = {kLargeWorkspaceEngine}});
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  set_math_behavior({.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine}});
  rig.expect_like_reference(Convolution{}.backward_input());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, ErrorNamesConvolutionWithoutEngine) {
  using namespace cuda_simulation;
  MathRig rig;
  set_math_behavior(
      {.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine, kFallbackEngine}});
  EXPECT_EQ(coded_error_of([&] { (void)rig.run(Convolution{}.forward()); }),
            "UNIMPLEMENTED: conv2d of float32 on cuDNN: no engine supports it; use TUTTI_TF32=1 or "
            "TUTTI_CUDNN_DETERMINISTIC=0 (the last engine reported: CUDNN_STATUS_NOT_SUPPORTED)");
}

TEST(CudaConvolution, ChoosesEngineThatFitsInMemory) {
  using namespace cuda_simulation;
  MathRig rig;
  rig.workspace.limit = 64 << 10;
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  rig.workspace.limit = 2 << 10;
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
  rig.workspace.limit = 64 << 20;  // with more memory, the engine is not chosen again
  (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, ErrorReportsMissingMemory) {
  MathRig rig;
  rig.workspace.limit = 8;  // too small even for a copy of the filter
  EXPECT_ERROR((void)rig.run(Convolution{}.forward()), kResourceExhausted, "gpu:0");
}

TEST(CudaConvolution, SkipsEnginesNeedingTooMuchMemory) {
  using namespace cuda_simulation;
  MathRig rig;
  cuda::MathOptions options;
  options.max_workspace_bytes = 1 << 16;
  rig.libraries.set_options(options);
  (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
}

TEST(CudaConvolution, BenchmarksEnginesOnRequest) {
  MathRig rig;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  for (int i = 0; i < 2; ++i) {
    rig.expect_like_reference(Convolution{}.forward());
  }
  // The options allow two engines. Before the first result, each engine runs once to warm up and
  // three times to be measured. Then the chosen engine computes both results.
  EXPECT_EQ(math_counts().plans, 2);
  EXPECT_EQ(math_counts().convolutions, 2 * 4 + 2);
}

TEST(CudaConvolution, BenchmarksOnlyEnginesThatFitInMemory) {
  MathRig rig;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  rig.workspace.limit = 64 << 10;
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, cuda_simulation::kSmallWorkspaceEngine);
  EXPECT_EQ(math_counts().convolutions, 1);  // a single engine needs no timing comparison
}

}  // namespace tutti::testing::math_libraries_test
