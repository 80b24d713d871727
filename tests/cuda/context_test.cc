// Tests the CUDA backend: opening it as a module, and the memory, copies and stream order of
// contexts on the simulated runtime.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/backend.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <vector>

#include "tensor/gpu/inventory.h"
#include "tests/cuda_simulation/kernel_emulation.h"
#include "tests/cuda_simulation/simulation.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti::cuda {
namespace {
using cuda_simulation::Machine;

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

TEST_F(CudaContext, RecoversAfterOutOfMemory) {
  const auto context = backend_.open(0);
  const std::size_t most = std::size_t{500} << 20;
  void* const data = context->allocate(most);
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(context->allocate(most), nullptr);
  void* const small = context->allocate(16);
  ASSERT_NE(small, nullptr);
  // the error of the failed call is not reported again
  context->fill({small, {4}, DType::kFloat32}, 1.0);
  context->synchronize(StreamId::kCompute);
  context->release(small);
  context->release(data);
}

TEST_F(CudaContext, StreamsRunConcurrentlyUntilOrderedByEvent) {
  const auto context = backend_.open(0);
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  const DeviceTensor one{data, {1}, DType::kFloat32};
  context->fill(one, 1.0);
  // The copy stream is not ordered with the compute stream, so the clear runs only when the copy
  // stream is synchronized.
  context->clear(data, sizeof(float), StreamId::kCopy);
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

TEST_F(CudaContext, AcceptsForeignStreamsAndMemory) {
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
    context->synchronize(StreamId::kCompute);  // selects GPU 1 although GPU 0 is current
  }
  int selected = -1;
  ASSERT_EQ(cudaGetDevice(&selected), cudaSuccess);
  EXPECT_EQ(selected, 0);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_ERROR(context->record_foreign(stream), kFailedPrecondition, "captured",
               "outside the capture");
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaContext, TimedEventsMeasureMilliseconds) {
  const auto context = backend_.open(0);
  const auto begin = context->record_timed(StreamId::kCompute);
  const auto end = context->record_timed(StreamId::kCompute);
  end->synchronize();
  EXPECT_GE(end->milliseconds_since(*begin), 0.0);
  EXPECT_INVALID(context->record(StreamId::kCompute)->milliseconds_since(*begin), "record_timed");
}

TEST_F(CudaContext, PeerCopyWaitsForPeerWork) {
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
  void* const meanwhile = context->allocate(64);  // allocation during a capture is allowed
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

TEST_F(CudaContext, WorkThatCannotBeCapturedIsRefused) {
  const auto context = backend_.open(0);
  context->begin_capture();
  EXPECT_ERROR(context->synchronize(StreamId::kCompute), kFailedPrecondition,
               "GPU 0 (Simulated GPU)", "capturing");
  EXPECT_ERROR(context->end_capture(), kFailedPrecondition, "end_capture");
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  context->fill({data, {1}, DType::kFloat32}, 2.0);
  EXPECT_EQ(read(*context, data, 1)[0], 2.0F);
  context->release(data);
}

TEST_F(CudaContext, ErrorsNameGpuAndReportLostDevice) {
  const auto context = backend_.open(1);
  float* const data = static_cast<float*>(context->allocate(sizeof(float)));
  cuda_simulation::inject({1, 0, true});
  context->fill({data, {1}, DType::kFloat32}, 2.0);
  EXPECT_ERROR(context->synchronize(StreamId::kCompute), kInternal, "GPU 1 (Simulated GPU)",
               "cudaErrorIllegalAddress", "restart");
  EXPECT_ERROR(context->allocate(16), kInternal, "GPU 1", "restart");
  EXPECT_NE(backend_.open(0)->allocate(16), nullptr);  // GPU 0 still works
}

TEST_F(CudaContext, UnknownKernelErrorNamesOperationAndType) {
  const auto context = backend_.open(0);
  class NoMemory final : public Workspace {
    void* allocate(std::size_t) override { return nullptr; }
  } workspace;
  const Attributes attributes;
  const DeviceTensor tensor{nullptr, {1}, DType::kInt64};
  EXPECT_FALSE(context->supports(OpId::kSoftmax, DType::kInt64));
  EXPECT_ERROR(
      context->run({OpId::kSoftmax, {&tensor, 1}, {&tensor, 1}, attributes, nullptr}, workspace),
      kUnimplemented, "GPU 0", "softmax", "int64");
}

TEST_F(CudaContext, BackendDescribesDevices) {
  const PhysicalDevice device = backend_.inspect(1);
  EXPECT_EQ(device.name, "Simulated GPU");
  EXPECT_EQ(device.pci_bus_id, "0000:03:00.0");
  EXPECT_EQ(device.major, 9);
  EXPECT_DOUBLE_EQ(device.memory_clock_ghz, 1.1);
  EXPECT_EQ(device.total_bytes, std::int64_t{512} << 20);
  EXPECT_LE(device.free_bytes, device.total_bytes);
  EXPECT_TRUE(backend_.can_access_peer(0, 1));
  EXPECT_EQ(backend_.description().rfind("CUDA 13", 0), 0U) << backend_.description();
  EXPECT_ERROR(backend_.inspect(2), kInternal, "cudaErrorInvalidDevice");
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

TEST_F(CudaContext, ReleasesAllResources) {
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

TEST(CudaModule, ConvertsErrorsToTuttiError) {
  const LoadedBackend loaded = load_backend({CudaMode::kAuto, TUTTI_SIMULATED_MODULE});
  ASSERT_NE(loaded.backend, nullptr) << loaded.reason;
  EXPECT_ERROR(loaded.backend->inspect(7), kInternal, "cudaErrorInvalidDevice");
}

TEST(CudaModule, RejectsModuleFromDifferentBuild) {
  void* const module = dlopen(TUTTI_SIMULATED_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr);
  const auto open = reinterpret_cast<OpenBackend>(dlsym(module, "tutti_open_backend"));
  ASSERT_NE(open, nullptr);
  std::array<char, 200> reason{};
  EXPECT_EQ(open("0.0.1-other", reason.data(), reason.size()), nullptr);
  EXPECT_NE(std::strstr(reason.data(), "from different builds: expected 0.0.1-other, got "),
            nullptr)
      << reason.data();
  EXPECT_NE(std::strstr(reason.data(), backend_build_id()), nullptr);
  std::array<char, 8> small{};
  EXPECT_EQ(open("0.0.1-other", small.data(), small.size()), nullptr);
  EXPECT_EQ(std::strlen(small.data()), 7U);  // truncated, but with a terminating zero
}

TEST(CudaModule, ExportsOnlyEntryPoints) {
  void* const module = dlopen(TUTTI_SIMULATED_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr);
  for (const char* name : {"cudaMalloc", "cublasLtMatmul", "cudnnBackendExecute"}) {
    EXPECT_EQ(dlsym(module, name), nullptr) << name;
  }
}

TEST(CudaModule, ErrorDescribesUnusableFile) {
  const LoadedBackend absent = load_backend({CudaMode::kAuto, "/nowhere/libtutti_cuda.so"});
  EXPECT_EQ(absent.backend, nullptr);
  EXPECT_NE(absent.reason.find("TUTTI_CUDA_MODULE cannot be opened: /nowhere/libtutti_cuda.so"),
            std::string::npos)
      << absent.reason;
  const LoadedBackend other = load_backend({CudaMode::kAuto, "libm.so.6"});
  EXPECT_EQ(other.backend, nullptr);
  EXPECT_NE(other.reason.find("libm.so.6 is not a CUDA module of tutti"), std::string::npos)
      << other.reason;
}

TEST(CudaModule, OffModeHidesGpus) {
  const LoadedBackend loaded = load_backend({CudaMode::kOff, TUTTI_SIMULATED_MODULE});
  EXPECT_EQ(loaded.backend, nullptr);
  EXPECT_EQ(loaded.module, "");
  EXPECT_EQ(loaded.reason, "TUTTI_CUDA=off hides the GPUs; unset it");
}

/// Uses the simulated GPUs and exits; runs in a separate process, because GPUs are enumerated only
/// once per process.
[[noreturn]] void use_simulated_gpus() {
  setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, 1);
  setenv("TUTTI_VIRTUAL_GPUS", "2:64", 1);
  set_log_sink([](LogLevel, std::string_view line) { std::cerr << line << '\n'; });
  const bool parsed = parse_devices("gpu:0-3").size() == 4 && default_devices().size() == 4;
  std::string errors;
  for (const auto& act : std::vector<std::function<void()>>{[] { Device::parse("gpu:4"); },
                                                            [] {
                                                              set_virtual_gpus({3, 0});
                                                            }}) {
    try {
      act();
    } catch (const Error& error) {
      errors += error.message() + '\n';
    }
  }
  std::cerr << errors;
  std::_Exit(parsed ? 0 : 1);
}

TEST(CudaModule, LogsGpusFoundAtStartup) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      use_simulated_gpus(), ::testing::ExitedWithCode(0),
      ::testing::AllOf(
          ::testing::HasSubstr("GPUs: CUDA "),
          ::testing::HasSubstr("Found device 1 with properties: name: Simulated GPU"),
          ::testing::HasSubstr("DMA: 0 1\n0:   Y Y\n"),
          ::testing::HasSubstr("Created gpu:3 -> (device: 1, name: Simulated GPU, PCI bus id: "
                               "0000:03:00.0, part 2 of 2, memory limit: 0.06 GiB)"),
          ::testing::HasSubstr("gpu:4 is unavailable: no such device; available devices: cpu:0"),
          ::testing::HasSubstr("set_virtual_gpus: the GPUs are in use")));
}

}  // namespace
}  // namespace tutti::cuda
