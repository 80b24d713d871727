// The CUDA backend's contexts on the simulated runtime: memory, copies, order, captures, errors.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/backend.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/cuda_simulation/kernel_emulation.h"
#include "tests/cuda_simulation/simulation.h"
#include "tests/support/tensor_matchers.h"

namespace tutti::cuda {
namespace {

using cuda_simulation::Machine;
using testing::expect_error;

class CudaContext : public ::testing::Test {
 protected:
  CudaContext() { cuda_simulation::set_machine({}); }
  ~CudaContext() override {
    cuda_simulation::set_machine(cuda_simulation::machine_of_environment());
  }

  static std::vector<float> read(DeviceContext& context, const void* data, std::size_t count) {
    std::vector<float> values(count);
    context.copy_to_host(values.data(), data, count * sizeof(float), StreamId::kCompute);
    context.synchronize(StreamId::kCompute);
    return values;
  }

  Backend backend_{2};
};

TEST_F(CudaContext, MovesMemoryBetweenHostAndDevice) {
  const auto context = backend_.open(0);
  float* const data = static_cast<float*>(context->allocate(4 * sizeof(float)));
  const std::array<float, 4> values{1, 2, 3, 4};
  context->copy_to_device(data, values.data(), sizeof(values), StreamId::kCompute);
  EXPECT_EQ(read(*context, data, 4), (std::vector<float>{1, 2, 3, 4}));
  context->clear(data + 1, 2 * sizeof(float), StreamId::kCompute);
  EXPECT_EQ(read(*context, data, 4), (std::vector<float>{1, 0, 0, 4}));
  context->fill({data, {3}, DType::kFloat32}, 7.0);
  EXPECT_EQ(read(*context, data, 4), (std::vector<float>{7, 7, 7, 4}));
  context->release(data);
}

TEST_F(CudaContext, AllocatesUntilTheGpuIsFullAndGoesOnAfterThat) {
  const auto context = backend_.open(0);
  const std::size_t most = std::size_t{500} << 20;
  void* const data = context->allocate(most);
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(context->allocate(most), nullptr);
  void* const small = context->allocate(16);
  ASSERT_NE(small, nullptr);
  context->fill({small, {4}, DType::kFloat32}, 1.0);  // no stale error is found
  context->synchronize(StreamId::kCompute);
  context->release(small);
  context->release(data);
}

TEST_F(CudaContext, StreamsRunSideBySideUntilAnEventOrdersThem) {
  const auto context = backend_.open(0);
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  const DeviceTensor one{data, {1}, DType::kFloat32};
  context->fill(one, 1.0);
  context->clear(data, sizeof(float), StreamId::kCopy);  // not ordered: runs when its turn comes
  EXPECT_EQ(read(*context, data, 1)[0], 1.0F);
  context->synchronize(StreamId::kCopy);
  EXPECT_EQ(read(*context, data, 1)[0], 0.0F);

  context->fill(one, 2.0);
  const auto filled = context->record(StreamId::kCompute);
  EXPECT_FALSE(filled->is_done());
  context->wait(StreamId::kCopy, *filled);
  context->clear(data, sizeof(float), StreamId::kCopy);
  const auto cleared = context->record(StreamId::kCopy);
  context->wait(StreamId::kCompute, *cleared);
  EXPECT_EQ(read(*context, data, 1)[0], 0.0F);
  EXPECT_TRUE(filled->is_done());
  context->release(data);
}

TEST_F(CudaContext, StreamsAndMemoryOfOthersTakePart) {
  const auto context = backend_.open(1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, sizeof(float)), cudaSuccess);
  const DeviceTensor one{data, {1}, DType::kFloat32};
  for (void* const foreign : {static_cast<void*>(stream), static_cast<void*>(nullptr)}) {
    ASSERT_EQ(cudaMemsetAsync(data, 0, sizeof(float), static_cast<cudaStream_t>(foreign)),
              cudaSuccess);
    context->wait(StreamId::kCompute, *context->record_foreign(foreign));
    context->fill(one, 2.0);
    context->wait_foreign(foreign, *context->record(StreamId::kCompute));
    float value = 0;
    ASSERT_EQ(cudaMemcpyAsync(&value, data, sizeof(float), cudaMemcpyDeviceToHost,
                              static_cast<cudaStream_t>(foreign)),
              cudaSuccess);
    EXPECT_EQ(value, 2.0F);
  }
  const float host = 0;
  EXPECT_EQ(backend_.gpu_of(data), 1);
  EXPECT_EQ(backend_.gpu_of(&host), -1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const auto kept = backend_.keep_selection();
    context->synchronize(StreamId::kCompute);  // selects its own
  }
  int selected = -1;
  ASSERT_EQ(cudaGetDevice(&selected), cudaSuccess);
  EXPECT_EQ(selected, 0);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  expect_error(ErrorCode::kFailedPrecondition, {"captured", "outside the capture"},
               [&] { context->record_foreign(stream); });
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaContext, TimedEventsTellMilliseconds) {
  const auto context = backend_.open(0);
  const auto begin = context->record_timed(StreamId::kCompute);
  const auto end = context->record_timed(StreamId::kCompute);
  end->synchronize();
  EXPECT_GE(end->milliseconds_since(*begin), 0.0);
  expect_error(ErrorCode::kInvalidArgument, {"record_timed"},
               [&] { context->record(StreamId::kCompute)->milliseconds_since(*begin); });
}

TEST_F(CudaContext, CopiesFromPeersAfterTheirWork) {
  const auto first = backend_.open(0), second = backend_.open(1);
  void* const from = first->allocate(sizeof(float));
  void* const to = second->allocate(sizeof(float));
  first->fill({from, {1}, DType::kFloat32}, 5.0);
  second->wait(StreamId::kCopy, *first->record(StreamId::kCompute));
  second->copy_from_peer(to, from, 0, sizeof(float), StreamId::kCopy);
  second->wait(StreamId::kCompute, *second->record(StreamId::kCopy));
  EXPECT_EQ(read(*second, to, 1)[0], 5.0F);
  first->release(from);
  second->release(to);
}

TEST_F(CudaContext, CapturedWorkRunsAtEachLaunch) {
  const auto context = backend_.open(0);
  float* const data = static_cast<float*>(context->allocate(2 * sizeof(float)));
  const DeviceTensor first{data, {1}, DType::kFloat32}, both{data, {2}, DType::kFloat32};
  context->fill(both, 1.0);
  context->begin_capture();
  context->fill(first, 3.0);
  const auto filled = context->record(StreamId::kCompute);
  EXPECT_FALSE(filled->is_done());
  context->wait(StreamId::kCommunication, *filled);
  context->clear(data + 1, sizeof(float), StreamId::kCommunication);
  context->wait(StreamId::kCompute, *context->record(StreamId::kCommunication));
  void* const meanwhile = context->allocate(64);  // allowed
  const auto graph = context->end_capture();
  EXPECT_EQ(read(*context, data, 2), (std::vector<float>{1, 1}));
  for (int i = 0; i < 2; ++i) {
    graph();
    EXPECT_EQ(read(*context, data, 2), (std::vector<float>{3, 0}));
    context->fill(both, 8.0);
  }
  context->release(meanwhile);
  context->release(data);
}

TEST_F(CudaContext, WhatCannotBeCapturedIsAPreconditionAndLeavesTheContextUsable) {
  const auto context = backend_.open(0);
  context->begin_capture();
  expect_error(ErrorCode::kFailedPrecondition, {"GPU 0 (Simulated GPU)", "capturing"},
               [&] { context->synchronize(StreamId::kCompute); });
  expect_error(ErrorCode::kFailedPrecondition, {"end_capture"}, [&] { context->end_capture(); });
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  context->fill({data, {1}, DType::kFloat32}, 2.0);
  EXPECT_EQ(read(*context, data, 1)[0], 2.0F);
  context->release(data);
}

TEST_F(CudaContext, ErrorsNameTheGpuAndSayWhenItIsLost) {
  const auto context = backend_.open(1);
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  cuda_simulation::inject({1, 0, true});
  context->fill({data, {1}, DType::kFloat32}, 2.0);
  expect_error(ErrorCode::kInternal,
               {"GPU 1 (Simulated GPU)", "cudaErrorIllegalAddress", "restart"},
               [&] { context->synchronize(StreamId::kCompute); });
  expect_error(ErrorCode::kInternal, {"GPU 1", "restart"}, [&] { context->allocate(16); });
  EXPECT_NE(backend_.open(0)->allocate(16), nullptr);  // the other one still works
}

TEST_F(CudaContext, UnknownKernelsNameOperationAndType) {
  const auto context = backend_.open(0);
  class NoMemory final : public Workspace {
    void* allocate(std::size_t) override { return nullptr; }
  } workspace;
  const Attributes attributes;
  const DeviceTensor tensor{nullptr, {1}, DType::kInt64};
  EXPECT_FALSE(context->supports(OpId::kSoftmax, DType::kInt64));
  expect_error(ErrorCode::kUnimplemented, {"GPU 0", "softmax", "int64"}, [&] {
    context->run({OpId::kSoftmax, {&tensor, 1}, {&tensor, 1}, attributes, nullptr}, workspace);
  });
}

TEST_F(CudaContext, TheBackendTellsWhatThereIs) {
  const PhysicalDevice device = backend_.inspect(1);
  EXPECT_EQ(device.name, "Simulated GPU");
  EXPECT_EQ(device.pci_bus_id, "0000:03:00.0");
  EXPECT_EQ(device.major, 9);
  EXPECT_DOUBLE_EQ(device.memory_clock_ghz, 1.1);
  EXPECT_EQ(device.total_bytes, std::int64_t{512} << 20);
  EXPECT_LE(device.free_bytes, device.total_bytes);
  EXPECT_TRUE(backend_.can_access_peer(0, 1));
  EXPECT_EQ(backend_.description().rfind("CUDA 13", 0), 0U) << backend_.description();
  expect_error(ErrorCode::kInternal, {"cudaErrorInvalidDevice"}, [&] { backend_.inspect(2); });
  Machine apart;
  apart.faults.peers = false;
  cuda_simulation::set_machine(apart);
  EXPECT_FALSE(backend_.can_access_peer(0, 1));
}

TEST_F(CudaContext, PinnedMemoryIsReadWhenTheCopyRuns) {
  const auto context = backend_.open(0);
  auto* const pinned = static_cast<float*>(backend_.allocate_pinned(sizeof(float)));
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  *pinned = 1.0F;
  context->copy_to_device(data, pinned, sizeof(float), StreamId::kCompute);
  *pinned = 2.0F;
  EXPECT_EQ(read(*context, data, 1)[0], 2.0F);
  context->release(data);
  backend_.release_pinned(pinned);
}

TEST_F(CudaContext, LeavesNothingBehind) {
  {
    const auto context = backend_.open(0);
    void* const data = context->allocate(16);
    context->fill({data, {4}, DType::kFloat32}, 1.0);
    context->record(StreamId::kCompute);
    context->release(data);
  }
  EXPECT_EQ(cuda_simulation::counts().live_blocks, 0);
  EXPECT_EQ(cuda_simulation::counts().waiting, 0);
}

}  // namespace
}  // namespace tutti::cuda
