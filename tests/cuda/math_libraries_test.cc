// The handles of cuBLAS and cuDNN: settings, errors, and the strictness of their stand-ins.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/math_libraries.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cuda/math_rig.h"
#include "tutti/tensor/cuda/convolution_graph.h"

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
  EXPECT_THROW(cuda::ConvolutionGraph(problem, rig.libraries.dnn(rig.stream)), Error);
}

}  // namespace
}  // namespace tutti::math_rig
