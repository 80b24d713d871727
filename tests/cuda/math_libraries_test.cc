// The handles of cuBLAS and cuDNN: settings, errors, and the strictness of their stand-ins.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/math_libraries.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "tensor/cuda/convolution_plans.h"
#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

/// Sets a variable of the environment until destroyed.
class MathEnvironment {
 public:
  MathEnvironment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~MathEnvironment() { unsetenv(name_); }
  MathEnvironment(const MathEnvironment&) = delete;
  MathEnvironment& operator=(const MathEnvironment&) = delete;

 private:
  const char* name_;
};

TEST(CudaMathLibraries, ReadTheirSettingsFromTheEnvironment) {
  EXPECT_FALSE(cuda::MathOptions::from_environment().allow_tf32);
  EXPECT_TRUE(cuda::MathOptions::from_environment().deterministic);
  EXPECT_EQ(cuda::MathOptions::from_environment().num_measured_plans, 0);
  const MathEnvironment tf32("TUTTI_TF32", "1"), repeatable("TUTTI_CUDNN_DETERMINISTIC", "0"),
      tune("TUTTI_CUDNN_TUNE", "1");
  EXPECT_TRUE(cuda::MathOptions::from_environment().allow_tf32);
  EXPECT_FALSE(cuda::MathOptions::from_environment().deterministic);
  EXPECT_EQ(cuda::MathOptions::from_environment().num_measured_plans, 8);
}

TEST(CudaMathLibraries, RefuseSettingsThatTheyDoNotKnow) {
  const MathEnvironment tf32("TUTTI_TF32", "yes");
  try {
    (void)cuda::MathOptions::from_environment();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "TUTTI_TF32: expected 0 or 1, got 'yes'");
  }
}

TEST(CudaMathLibraries, TellTheirVersions) {
  EXPECT_EQ(cuda::math_libraries_description(), "cuBLAS 13.0.0, cuDNN 9.0.0");
}

TEST(CudaMathLibraries, MakeHandlesWhenFirstUsed) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_handles = true});
  cuda::MathLibraries libraries{cuda::MathOptions{}};
  try {
    (void)libraries.dnn(nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_EQ(error.message(), "cudnnCreate: cuDNN says CUDNN_STATUS_NOT_INITIALIZED: no driver");
  }
  try {
    (void)libraries.blas();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "cublasLtCreate: cuBLAS says CUBLAS_STATUS_NOT_INITIALIZED: says the stand-in of "
              "cuBLASLt");
  }
  cuda_simulation::set_math_behavior({});
  EXPECT_EQ(libraries.blas(), libraries.blas());
  EXPECT_EQ(libraries.dnn(nullptr), libraries.dnn(nullptr));
}

TEST(CudaMathLibraries, FailedWorkOfTheStreamIsAnError) {
  MathRig rig;
  EXPECT_THROW(cuda::check(CUDNN_STATUS_EXECUTION_FAILED, "x"), Error);
  try {
    cuda::check(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "x");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
  try {
    cuda::check(CUBLAS_STATUS_ALLOC_FAILED, "x");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

TEST(CudaMathLibraries, TheStandInChecksDescriptors) {
  MathRig rig;
  cuda::BackendDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_THROW(tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1.0f), Error);
  EXPECT_THROW(tensor.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 0), Error);
  EXPECT_THROW(tensor.finalize(), Error);
  cuda::ConvolutionProblem problem;
  problem.x = {1, 4, 4, 2};
  problem.filter = {3, 3, 3, 2};
  problem.y = {1, 4, 4, 3};  // without padding it would be 2 x 2
  EXPECT_THROW(cuda::ConvolutionGraph(problem, rig.libraries.dnn(nullptr)), Error);
}

/// Memory that was there before: nothing may be allocated while capturing.
class PreparedWorkspace : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    used_ = (used_ + 255) / 256 * 256;
    if (used_ + bytes > kBytes) fail(ErrorCode::kResourceExhausted, "used up");
    return memory_.get() + std::exchange(used_, used_ + bytes);
  }

 private:
  static constexpr std::size_t kBytes = 4 << 20;
  DeviceBytes memory_{kBytes};
  std::size_t used_ = 0;
};

// Handles and plans are made in the middle of the capture; nothing is measured there.
TEST(CudaMathLibraries, CapturedCallsRunWithEachLaunch) {
  MathRig rig;
  const testing::DeviceArena arena;
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
  testing::device_kernels().find(OpId::kConv2d, DType::kFloat32)(
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
    EXPECT_EQ(result[0], 8.0f);   // a corner: 2 x 2 pixels of 2 channels
    EXPECT_EQ(result[9], 18.0f);  // inside: 3 x 3
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace tutti::math_rig
