// Kernels on the CPU: where threads are, barriers, shuffles, and what goes wrong with them.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/kernel_emulation.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/cuda_simulation/simulation.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

void note_places(std::vector<int>* places) {
  places->push_back(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}

void reverse_in_shared_memory(int* data) {
  __shared__ int copy[64];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  copy[threadIdx.x] = data[i];
  __syncthreads();
  data[i] = copy[blockDim.x - 1 - threadIdx.x];
}

void sum_of_warp(int* data) {
  int value = data[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  data[threadIdx.x] = value;
}

void fail_in_one_thread(int) {
  __syncthreads();
  if (threadIdx.x == 3) fail(ErrorCode::kInternal, "kernel_emulation_test: on purpose");
}

void meet_without_one_thread(int) {
  if (threadIdx.x != 0) __syncthreads();
  if (threadIdx.x == 0) __syncwarp();
}

/// Streams of a machine of its own.
class KernelEmulation : public ::testing::Test {
 protected:
  KernelEmulation() {
    set_machine({});
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~KernelEmulation() override {
    set_machine(machine_of_environment());
    cudaGetLastError();
  }
  cudaError_t finish() { return cudaStreamSynchronize(stream_); }
  cudaStream_t stream_ = nullptr;
};

TEST_F(KernelEmulation, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> places;
  cuda::launch(note_places, 2, 3, stream_, &places);
  EXPECT_TRUE(places.empty());
  EXPECT_EQ(finish(), cudaSuccess);
  EXPECT_EQ(places, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST_F(KernelEmulation, ThreadsMeetAtBarriers) {
  std::vector<int> data(128);
  for (int i = 0; i < 128; ++i) data[static_cast<std::size_t>(i)] = i;
  cuda::launch_cooperative(reverse_in_shared_memory, 2, 64, stream_, data.data());
  EXPECT_EQ(finish(), cudaSuccess);
  for (int i = 0; i < 128; ++i) {
    EXPECT_EQ(data[static_cast<std::size_t>(i)], i / 64 * 64 + 63 - i % 64);
  }
}

TEST_F(KernelEmulation, WarpsShuffle) {
  std::vector<int> data(64, 1);
  data[40] = 5;
  cuda::launch_cooperative(sum_of_warp, 1, 64, stream_, data.data());
  EXPECT_EQ(finish(), cudaSuccess);
  EXPECT_EQ(data[0], 32);
  EXPECT_EQ(data[63], 36);
}

TEST_F(KernelEmulation, AnErrorInAThreadBreaksTheGpu) {
  cuda::launch_cooperative(fail_in_one_thread, 1, 32, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

TEST_F(KernelEmulation, BarriersInKernelsOfThreadsAloneAreRefused) {
  cuda::launch(fail_in_one_thread, 1, 32, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

TEST_F(KernelEmulation, ABarrierThatSomeThreadsPassByIsNoDeadlock) {
  cuda::launch_cooperative(meet_without_one_thread, 1, 4, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace tutti::cuda_simulation
