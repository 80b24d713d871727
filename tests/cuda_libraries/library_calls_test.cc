// Tests, without a driver, that the real cuBLAS and cuDNN accept tutti's descriptors, and that
// their errors name the reason.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/math_libraries.h"
#include "tensor/cuda/matrix_product.h"

namespace tutti::cuda::library_calls_test {

class NoWorkspace : public Workspace {
 public:
  void* allocate(std::size_t) override {
    fail(ErrorCode::kResourceExhausted, "NoWorkspace: no memory");
  }
};

/// Kernel call without tensors.
struct EmptyCall {
  MathLibraries libraries{MathOptions{}};
  NoWorkspace workspace;
  Attributes attributes;
  KernelCall call{{}, {}, attributes, nullptr, nullptr, libraries, workspace};
};

// Hides GPUs before the first call to CUDA, so that this test behaves the same on a machine with a
// GPU. On such a machine, other tests run the kernels.
const bool kGpusAreHidden = ::setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0;

TEST(RealCublas, FindsNoGpuIfDevicesAreHidden) {
  int count = 0;
  EXPECT_TRUE(kGpusAreHidden);
  EXPECT_TRUE(cudaGetDeviceCount(&count) != cudaSuccess || count == 0) << count;
}

// The descriptors are created before the handle, because creating the handle fails without a
// driver. An error from cublasLtCreate() therefore shows that cuBLASLt accepted the descriptors.
TEST(RealCublas, AcceptsMatrixProductDescriptors) {
  for (const DType dtype : kFloatingTypes) {
    for (int flags = 0; flags < 32; ++flags) {
      EmptyCall empty;
      MatrixProduct product{dtype, 3, 5, 7, (flags & 16) != 0 ? 4 : 1};
      product.transpose_a = (flags & 1) != 0;
      product.transpose_b = (flags & 2) != 0;
      product.b_is_shared = (flags & 4) != 0;
      float bias = 0.0f;
      if ((flags & 8) != 0) product.bias = &bias;
      try {
        (void)empty.libraries.matrix_plans().get(product, empty.call);
        ADD_FAILURE() << "cublasLtCreate() succeeded without a driver";
      } catch (const Error& error) {
        EXPECT_EQ(
            error.message().find("cublasLtCreate: cuBLAS reports CUBLAS_STATUS_NOT_INITIALIZED"),
            0u)
            << error.message();
      }
    }
  }
}

TEST(RealCudnn, AcceptsSoftmaxDescriptors) {
  KernelTable table;
  register_softmax_kernels(table);
  for (const DType dtype : kFloatingTypes) {
    EmptyCall empty;
    const DeviceTensor tensor{nullptr, {3, 5}, dtype};
    const DeviceTensor inputs[] = {tensor, tensor}, outputs[] = {tensor};
    const KernelCall call{inputs,  outputs,         empty.attributes, nullptr,
                          nullptr, empty.libraries, empty.workspace};
    try {
      table.find(OpId::kSoftmaxGrad, dtype)(call);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.message().find("cudnnCreate: cuDNN reports CUDNN_STATUS_"), 0u)
          << error.message();
    }
  }
}

TEST(RealLibraries, ReportVersions) {
  const std::string description = math_libraries_description();
  EXPECT_EQ(description.find("cuBLAS 1"), 0u) << description;
  EXPECT_NE(description.find(", cuDNN 9."), std::string::npos) << description;
}

}  // namespace tutti::cuda::library_calls_test
