// Opening the backend as a module: from the right file, of the right build, with errors that cross.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <vector>

#include "tensor/gpu/inventory.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

using testing::expect_error;

TEST(CudaModule, OpensAndComputes) {
  const LoadedBackend loaded = load_backend({CudaMode::kAuto, TUTTI_SIMULATED_MODULE});
  ASSERT_NE(loaded.backend, nullptr) << loaded.reason;
  EXPECT_TRUE(loaded.is_simulated);
  EXPECT_EQ(loaded.module, TUTTI_SIMULATED_MODULE);
  EXPECT_EQ(loaded.backend->num_devices(), 2);
  const auto context = loaded.backend->open(1);
  void* const data = context->allocate(2 * sizeof(float));
  context->fill({data, {2}, DType::kFloat32}, 3.0);
  std::array<float, 2> values{};
  context->copy_to_host(values.data(), data, sizeof(values), StreamId::kCompute);
  context->synchronize(StreamId::kCompute);
  EXPECT_EQ(values, (std::array<float, 2>{3.0F, 3.0F}));
  context->release(data);
}

TEST(CudaModule, ItsErrorsAreTutti) {
  const LoadedBackend loaded = load_backend({CudaMode::kAuto, TUTTI_SIMULATED_MODULE});
  ASSERT_NE(loaded.backend, nullptr) << loaded.reason;
  expect_error(ErrorCode::kInternal, {"cudaErrorInvalidDevice"},
               [&] { loaded.backend->inspect(7); });
}

TEST(CudaModule, RefusesModuleOfAnotherBuild) {
  void* const module = dlopen(TUTTI_SIMULATED_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr);
  const auto open = reinterpret_cast<OpenBackend>(dlsym(module, "tutti_open_backend"));
  ASSERT_NE(open, nullptr);
  std::array<char, 200> reason{};
  EXPECT_EQ(open("0.0.1-other", reason.data(), reason.size()), nullptr);
  EXPECT_NE(std::strstr(reason.data(), "of another build: expected 0.0.1-other, got "), nullptr)
      << reason.data();
  EXPECT_NE(std::strstr(reason.data(), backend_build_id()), nullptr);
  std::array<char, 8> small{};
  EXPECT_EQ(open("0.0.1-other", small.data(), small.size()), nullptr);
  EXPECT_EQ(std::strlen(small.data()), 7U);  // cut, and still ended
}

TEST(CudaModule, ExportsOnlyWhatTheHostLooksFor) {
  void* const module = dlopen(TUTTI_SIMULATED_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr);
  for (const char* name : {"cudaMalloc", "cublasLtMatmul", "cudnnBackendExecute"}) {
    EXPECT_EQ(dlsym(module, name), nullptr) << name;
  }
}

TEST(CudaModule, SaysWhatIsWrongWithAFile) {
  const LoadedBackend absent = load_backend({CudaMode::kAuto, "/nowhere/libtutti_cuda.so"});
  EXPECT_EQ(absent.backend, nullptr);
  EXPECT_NE(absent.reason.find("TUTTI_CUDA_MODULE does not open: /nowhere/libtutti_cuda.so"),
            std::string::npos)
      << absent.reason;
  const LoadedBackend other = load_backend({CudaMode::kAuto, "libm.so.6"});
  EXPECT_EQ(other.backend, nullptr);
  EXPECT_NE(other.reason.find("libm.so.6 is no CUDA module of tutti"), std::string::npos)
      << other.reason;
}

TEST(CudaModule, OffLooksForNothing) {
  const LoadedBackend loaded = load_backend({CudaMode::kOff, TUTTI_SIMULATED_MODULE});
  EXPECT_EQ(loaded.backend, nullptr);
  EXPECT_EQ(loaded.module, "");
  EXPECT_EQ(loaded.reason, "TUTTI_CUDA=off hides the GPUs; try without it");
}

/// In a process of its own: GPUs are looked for once.
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

TEST(CudaModule, ProgramsFindGpusOnceAndLogThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      use_simulated_gpus(), ::testing::ExitedWithCode(0),
      ::testing::AllOf(
          ::testing::HasSubstr("GPUs: CUDA "),
          ::testing::HasSubstr("Found device 1 with properties: name: Simulated GPU"),
          ::testing::HasSubstr("DMA: 0 1\n0:   Y Y\n"),
          ::testing::HasSubstr("Created gpu:3 -> (device: 1, name: Simulated GPU, PCI bus id: "
                               "0000:03:00.0, part 2 of 2, memory limit: 0.06 GiB)"),
          ::testing::HasSubstr("gpu:4 is unavailable: no such device; devices here: cpu:0"),
          ::testing::HasSubstr("set_virtual_gpus: the GPUs are in use")));
}

}  // namespace
}  // namespace tutti
