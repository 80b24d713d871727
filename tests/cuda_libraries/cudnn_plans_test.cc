// Tests, without a GPU, that the real cuDNN accepts tutti's descriptors and has engines for all of
// tutti's convolutions.
// SPDX-License-Identifier: Apache-2.0
//
// Since version 9.11, cuDNN can choose and prepare engines from a GPU's description alone. With an
// older version, these tests check only the descriptors.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tensor/cuda/convolution_plans.h"
#include "tutti/core/text.h"

namespace tutti::cuda::cudnn_plans_test {

constexpr std::size_t kFirstWithDescribedGpus = 91'100;

/// Returns the description of a GPU, in the format of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
std::string described_gpu(int version, int multiprocessors, int shared_bytes, const char* name) {
  return concat(
      R"({"cudnnVersion":)", cudnnGetVersion(), R"(,"schemaVersion":1,"cudaDeviceId":0,)",
      R"("deviceId":0,"deviceVer":)", version, R"(,"driverVer":13000,)",
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
      R"("regsPerBlock":65536,"multiProcessorCount":)", multiprocessors, R"(,"warpSize":32,)",
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", shared_bytes,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)",
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)",
      R"("supportCoopLaunch":1,"smClockRateKHz":1410000,"memClockRateKHz":1600000,)",
      R"("l2CacheSize":41943040,"totalGlobalMem":42949672960,"deviceName":")", name, R"("})");
}

const std::vector<std::string>& described_gpus() {
  static const std::vector<std::string> gpus{described_gpu(800, 108, 166'912, "NVIDIA A100"),
                                             described_gpu(900, 132, 232'448, "NVIDIA H200")};
  return gpus;
}

BackendDescriptor device_of(const std::string& description) {
  BackendDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set_array(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                   static_cast<std::int64_t>(description.size()), description.data());
  device.finalize();
  return device;
}

struct LayerCase {
  const char* name;
  std::array<std::int64_t, 4> x, filter, y;  // layouts: NHWC, OHWI, NHWC
  Conv2dAttributes attributes;
};

Conv2dAttributes window(std::int64_t stride, std::int64_t before, std::int64_t after,
                        std::int64_t dilation = 1, std::int64_t groups = 1) {
  return {stride,   stride,   before, after, before, after, FusedActivation::kNone,
          dilation, dilation, groups};
}

const std::vector<LayerCase>& layer_cases() {
  static const std::vector<LayerCase> cases{
      {"3x3", {32, 56, 56, 64}, {64, 3, 3, 64}, {32, 56, 56, 64}, window(1, 1, 1)},
      {"3x3, stride 2, SAME",
       {32, 56, 56, 128},
       {128, 3, 3, 128},
       {32, 28, 28, 128},
       window(2, 0, 1)},
      {"7x7, stride 2, SAME",
       {32, 224, 224, 3},
       {64, 7, 7, 3},
       {32, 112, 112, 64},
       window(2, 2, 3)},
      {"1x1, stride 2", {32, 56, 56, 256}, {512, 1, 1, 256}, {32, 28, 28, 512}, window(2, 0, 0)},
      {"CIFAR-10, first layer",
       {128, 32, 32, 3},
       {16, 3, 3, 3},
       {128, 32, 32, 16},
       window(1, 1, 1)},
      {"MNIST, first layer", {64, 28, 28, 1}, {32, 3, 3, 1}, {64, 26, 26, 32}, window(1, 0, 0)},
      {"uneven channels", {3, 7, 9, 5}, {7, 3, 3, 5}, {3, 5, 7, 7}, window(1, 0, 0)},
      {"dilated", {8, 32, 32, 16}, {16, 3, 3, 16}, {8, 32, 32, 16}, window(1, 2, 2, 2)},
      {"groups", {32, 28, 28, 128}, {128, 3, 3, 4}, {32, 28, 28, 128}, window(1, 1, 1, 1, 32)},
      {"depthwise", {32, 28, 28, 32}, {32, 3, 3, 1}, {32, 28, 28, 32}, window(1, 1, 1, 1, 32)},
      {"depthwise, SAME, stride 2",
       {32, 28, 28, 32},
       {32, 3, 3, 1},
       {32, 14, 14, 32},
       window(2, 0, 1, 1, 32)},
      {"one image, one pixel", {1, 3, 3, 1}, {1, 3, 3, 1}, {1, 1, 1, 1}, window(1, 0, 0)}};
  return cases;
}

std::vector<ConvolutionProblem> problems() {
  std::vector<ConvolutionProblem> all;
  for (const LayerCase& layer : layer_cases()) {
    for (const OpId op : {OpId::kConv2d, OpId::kConv2dBackwardInput, OpId::kConv2dBackwardFilter}) {
      for (const DType dtype :
           {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
        all.push_back({op, dtype, layer.x, layer.filter, layer.y, layer.attributes});
      }
    }
  }
  return all;
}

std::string what(const ConvolutionProblem& p) {
  return concat(to_string(p.op), " ", to_string(p.dtype), " x [", p.x[1], ", ", p.x[2], ", ",
                p.x[3], "], filter [", p.filter[0], ", ", p.filter[1], ", ", p.filter[2], ", ",
                p.filter[3], "]");
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const ConvolutionPlan& plan) {
  const BackendDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(plan.engine.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &handle),
        "engine");
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, static_cast<std::int64_t>(notes.size()),
                                 &count, notes.data()),
        "notes");
  notes.resize(static_cast<std::size_t>(count));
  return notes;
}

bool has(const ConvolutionPlan& plan, cudnnBackendNumericalNote_t note) {
  const auto notes = notes_of(plan);
  return std::ranges::find(notes, note) != notes.end();
}

/// Calls body(problem, graph, device) for each combination of a problem and a GPU description.
template <class Body>
void for_each_problem(const Body& body) {
  if (cudnnGetVersion() < kFirstWithDescribedGpus) {
    GTEST_SKIP() << "cuDNN " << cudnnGetVersion() << " cannot plan for a GPU from its description; "
                 << "expected version " << kFirstWithDescribedGpus << " or later";
  }
  for (const std::string& description : described_gpus()) {
    const BackendDescriptor device = device_of(description);
    for (const ConvolutionProblem& problem : problems()) {
      body(problem, ConvolutionGraph(problem, nullptr), device);
    }
  }
}

std::vector<ConvolutionPlan> plans_of(const ConvolutionProblem& problem,
                                      const ConvolutionGraph& graph,
                                      const BackendDescriptor& device, const MathOptions& options) {
  std::string reason;
  auto plans = supported_plans(graph, problem.dtype, {nullptr, &device}, options, 1,
                               options.max_workspace_bytes, reason);
  EXPECT_EQ(plans.size(), 1u) << what(problem) << ": " << reason;
  return plans;
}

TEST(RealCudnn, AcceptsDescriptorsOfAllConvolutions) {
  for (ConvolutionProblem problem : problems()) {
    EXPECT_NO_THROW(ConvolutionGraph(problem, nullptr)) << what(problem);
    const auto size = static_cast<std::int64_t>(size_of(problem.dtype));
    problem.x_alignment = problem.filter_alignment = problem.y_alignment = size;
    EXPECT_NO_THROW(ConvolutionGraph(problem, nullptr)) << what(problem);
  }
}

TEST(RealCudnn, RejectsMismatchedResultShape) {
  ConvolutionProblem problem = problems().front();
  problem.y[1] += 1;
  try {
    const ConvolutionGraph graph(problem, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("cuDNN reports CUDNN_STATUS_BAD_PARAM"), std::string::npos)
        << error.message();
  }
}

TEST(RealCudnn, HasDeterministicEngineForEveryConvolution) {
  for_each_problem([](const ConvolutionProblem& problem, const ConvolutionGraph& graph,
                      const BackendDescriptor& device) {
    for (const ConvolutionPlan& plan : plans_of(problem, graph, device, {})) {
      EXPECT_FALSE(has(plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) << what(problem);
      EXPECT_FALSE(problem.dtype == DType::kFloat32 && has(plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
          << what(problem);
    }
  });
}

TEST(RealCudnn, HasEngineForUnalignedTensors) {
  for_each_problem(
      [](ConvolutionProblem problem, const ConvolutionGraph&, const BackendDescriptor& device) {
        const auto size = static_cast<std::int64_t>(size_of(problem.dtype));
        problem.x_alignment = problem.filter_alignment = problem.y_alignment = size;
        (void)plans_of(problem, ConvolutionGraph(problem, nullptr), device, {});
      });
}

TEST(RealCudnn, UsesTensorCoresFor16BitAndTf32) {
  MathOptions options;
  options.allow_tf32 = true;
  for_each_problem([&](const ConvolutionProblem& problem, const ConvolutionGraph& graph,
                       const BackendDescriptor& device) {
    const bool is_wide =
        problem.x[3] % 64 == 0 && problem.filter[0] % 64 == 0 && problem.attributes.groups == 1;
    if (!is_wide || problem.dtype == DType::kFloat64) return;
    for (const ConvolutionPlan& plan : plans_of(problem, graph, device, options)) {
      EXPECT_TRUE(has(plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) << what(problem);
    }
  });
}

}  // namespace tutti::cuda::cudnn_plans_test
