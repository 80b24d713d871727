// Tests the simulated CUDA runtime and emulated kernels: when work runs, and which calls fail.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/simulation.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda_simulation/kernel_emulation.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

/// Fixture that gives each test a new machine; streams a_ and b_ are on GPU 0.
class Simulation : public ::testing::Test {
 protected:
  Simulation() {
    set_machine({});
    cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  ~Simulation() override {
    set_machine(machine_of_environment());
    cudaGetLastError();
  }

  /// Enqueues work that records `name` when it runs.
  void put(cudaStream_t stream, char name) {
    enqueue(stream, [this, name] { order_ += name; });
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::string order_;
};

TEST_F(Simulation, WorkRunsWhenAwaited) {
  put(a_, 'a');
  put(b_, 'b');
  EXPECT_EQ(order_, "");
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(order_, "b");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(order_, "ba");
}

TEST_F(Simulation, WaitForUnrecordedEventHasNoEffect) {
  put(a_, '1');
  cudaStreamWaitEvent(b_, event_, 0);
  cudaEventRecord(event_, a_);
  put(b_, '2');
  cudaStreamSynchronize(b_);
  EXPECT_EQ(order_, "2");
}

TEST_F(Simulation, DefaultStreamSynchronizesWithBlockingStreams) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  put(a_, 'x');  // a_ is non-blocking, so it is not ordered with the default stream
  put(blocking, '1');
  put(nullptr, '2');
  put(blocking, '3');
  EXPECT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(order_, "123");
  cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal);
  void* data = nullptr;
  EXPECT_EQ(try_enqueue(nullptr, [] {}), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
}

TEST_F(Simulation, QueryAdvancesPendingWork) {
  put(a_, '1');
  put(a_, '2');
  cudaEventRecord(event_, a_);
  int asked = 0;
  for (; cudaEventQuery(event_) == cudaErrorNotReady; ++asked) ASSERT_LT(asked, 10);
  EXPECT_EQ(order_, "12");
  EXPECT_GT(asked, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);  // as in CUDA, the error stays until it is read
}

TEST_F(Simulation, PageableCopiesReadImmediatelyAndPinnedCopiesLater) {
  void* device = nullptr;
  int* pinned = nullptr;
  int pageable = 1, result = 0;
  cudaMalloc(&device, sizeof(int));
  cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int));
  cudaMemcpyAsync(device, &pageable, sizeof(int), cudaMemcpyHostToDevice, a_);
  pageable = 2;
  cudaMemcpyAsync(&result, device, sizeof(int), cudaMemcpyDeviceToHost, a_);
  EXPECT_EQ(result, 1);
  *pinned = 3;
  cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, a_);
  *pinned = 4;
  cudaMemcpyAsync(&result, device, sizeof(int), cudaMemcpyDeviceToHost, a_);
  EXPECT_EQ(result, 4);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(counts().live_blocks, 0);
}

TEST_F(Simulation, RejectsCopiesOutsideAllocation) {
  std::byte* device = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&device), 100);
  std::vector<std::byte> host(200);
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 101, cudaMemcpyHostToDevice, a_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device + 50, 51, cudaMemcpyDeviceToHost, a_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 100, cudaMemcpyDeviceToHost, a_),
            cudaErrorInvalidValue);
  cudaFree(device);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device, 1, cudaMemcpyDeviceToHost, a_),
            cudaErrorInvalidValue);
}

TEST_F(Simulation, OverrunIsDetectedAtFree) {
  char* data = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&data), 8);
  enqueue(a_, [data] { data[8] = 0; });
  EXPECT_EQ(cudaFree(data), cudaErrorIllegalAddress);
}

TEST_F(Simulation, HostAccessToGpuMemoryCrashes) {
  volatile char* data = nullptr;
  cudaMalloc(const_cast<void**>(reinterpret_cast<volatile void**>(&data)), 8);
  EXPECT_DEATH(data[0] = 1, "");
}

TEST_F(Simulation, FailedKernelBreaksGpuPermanently) {
  put(a_, '1');
  put(a_, '2');
  inject({.kernel = 2, .allocation = 0, .peers = true});
  put(a_, '3');
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorIllegalAddress);
  EXPECT_EQ(order_, "1");
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 8), cudaErrorIllegalAddress);
  cudaSetDevice(1);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
}

TEST_F(Simulation, MissingGraphEdgeChangesExecutionOrder) {
  cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(event_, a_);
  cudaStreamWaitEvent(b_, event_, 0);
  put(a_, '1');
  put(b_, '2');  // does not wait for '1'
  cudaEventRecord(event_, b_);
  cudaStreamWaitEvent(a_, event_, 0);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, a_);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(order_, "21");
}

TEST_F(Simulation, CaptureRejectsUncapturableCalls) {
  void* data = nullptr;
  cudaGraph_t graph = nullptr;
  const auto fails = [&](cudaError_t expected, const auto& act) {
    cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal);
    EXPECT_EQ(act(), expected);
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  };
  int value = 0;
  fails(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&data, 8); });
  fails(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(a_); });
  fails(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(b_); });
  fails(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  cudaMalloc(&data, 8);
  fails(cudaErrorStreamCaptureUnsupported,
        [&] { return cudaMemcpyAsync(data, &value, sizeof(value), cudaMemcpyHostToDevice, a_); });
  put(b_, 'x');
  cudaEventRecord(event_, b_);
  fails(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(a_, event_, 0); });
}

TEST_F(Simulation, CaptureMustEndOnOriginStreamWithAllStreamsJoined) {
  cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(event_, a_);
  cudaStreamWaitEvent(b_, event_, 0);
  put(b_, '1');
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorIllegalState);
}

TEST_F(Simulation, RelaxedModeAllowsAllocationDuringCapture) {
  cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  cudaThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
}

void fail_in_one_thread(int) {
  __syncthreads();
  if (threadIdx.x == 3) fail(ErrorCode::kInternal, "fail_in_one_thread: injected error");
}

void meet_without_one_thread(int) {
  if (threadIdx.x != 0) __syncthreads();
  if (threadIdx.x == 0) __syncwarp();
}

/// Fixture with a stream on a reset simulated machine.
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

TEST_F(KernelEmulation, ErrorInOneThreadFailsLaunch) {
  cuda::launch_cooperative(fail_in_one_thread, 1, 32, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

TEST_F(KernelEmulation, BarrierOutsideCooperativeLaunchFails) {
  cuda::launch(fail_in_one_thread, 1, 32, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

TEST_F(KernelEmulation, SkippedBarrierFailsInsteadOfDeadlocking) {
  cuda::launch_cooperative(meet_without_one_thread, 1, 4, stream_, 0);
  EXPECT_EQ(finish(), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace tutti::cuda_simulation
