// Tests devices (names, scopes, dispatch, placement, transfers, observers) and memory of tensors
// (caching allocator, device limits, copies that bypass the CPU's caches).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "core/names.h"
#include "tensor/cpu/vectorized.h"
#include "tensor/kernel_table.h"
#include "tensor/tensor_impl.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"
#include "tutti/tensor/tensor_ops.h"
#include "tutti/tensor/variable_memory.h"

namespace tutti::testing::device_test {

TEST(DeviceTest, ErrorForMalformedTextIsOneShortLine) {
  const std::string strange = std::string(5000, 'x') + "\n\xff";
  for (const std::string& text : {std::string("cpu\n0"), std::string("\xe2\x80\xa8"), strange}) {
    for (const auto& read : std::vector<std::function<void()>>{
             [&] { Device::parse(text); }, [&] { parse_devices(text); },
             [&] { DeviceSpec::parse(text); }, [&] { DeviceSpec::parse("/" + text); }}) {
      try {
        read();
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_EQ(error.message(), one_line(error.message(), 400));
      }
    }
  }
}

TEST(Device, ParsesTensorFlowAndCudaSpellings) {
  const Device expected{DeviceType::kCpu, 3};
  for (const char* text : {"cpu:3", "CPU:3", "/cpu:3", "/device:CPU:3", "/device:cpu:3"}) {
    EXPECT_EQ(Device::parse(text), expected) << text;
  }
  EXPECT_EQ(expected.to_string(), "cpu:3");
  EXPECT_EQ(Device::parse(expected.to_string()), expected);
  for (const char* text : {"cuda:77", "CUDA:77", "/device:CUDA:77"}) {
    EXPECT_ERROR(Device::parse(text), kUnavailable, "gpu:77 is unavailable");
  }
  EXPECT_EQ(DeviceSpec::parse("/task:1/device:CUDA:2").to_string(), "/task:1/device:GPU:2");
  EXPECT_INVALID(Device::parse("cude:0"), "expected 'cpu:0', 'gpu:0'", "'cude:0'");
}

TEST(Device, TpuNamesDenoteXlaDevices) {
  const Device expected{DeviceType::kXla, 2};
  for (const char* text : {"xla:2", "tpu:2", "TPU:2", "/tpu:2", "/device:TPU:2", "/device:xla:2"}) {
    EXPECT_EQ(Device::parse(text), expected) << text;
  }
  EXPECT_EQ(expected.to_string(), "xla:2");
  EXPECT_EQ(parse_devices("xla:0-1,tpu:2").back(), expected);
  EXPECT_EQ(DeviceSpec::parse("/task:1/device:TPU:2").to_string(), "/task:1/device:XLA:2");
  EXPECT_ERROR(Device::parse("xla:64"), kUnavailable, "xla:64");
  EXPECT_ERROR(parse_devices("xla:0-9999"), kUnavailable, "xla:9999");
}

TEST(Device, XlaDevicesRejectTensorsAndScopes) {
  const Device device{DeviceType::kXla, 1};
  const auto expect_refused = [](const std::function<void()>& action) {
    expect_error(ErrorCode::kUnimplemented, {"xla:1", "MirroredStrategy(\"xla:1\")", "cpu:0"},
                 action);
  };
  expect_refused([&] { require_available(device); });
  expect_refused([&] { Tensor::zeros({2}, DType::kFloat32, device); });
  expect_refused([&] { Tensor::from<float>({2}, {1, 2}, device); });
  expect_refused([&] { (void)Tensor::zeros({2}).to(device); });
  expect_refused([&] { DeviceScope scope("/device:TPU:1"); });
  expect_refused([&] { (void)resolve(DeviceSpec::parse("/tpu:1")); });
}

TEST(Device, RejectsInvalidNamesAndListsDevices) {
  for (const char* text : {"", "cpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1:2", "fpga:0", "cpu:*", "/",
                           "/job:worker/cpu:0", "cpu:99999999999"}) {
    EXPECT_INVALID(Device::parse(text), "Device::parse", concat("'", text, "'"));
  }
  for (const char* text : {"gpu:77", "/gpu:77", "/device:GPU:77"}) {
    EXPECT_ERROR(Device::parse(text), kUnavailable,
                 "gpu:77 is unavailable: ", "; available devices: cpu:0 ... cpu:63 (virtual)");
  }
  EXPECT_NO_THROW(Device::parse("cpu:63"));
  EXPECT_ERROR(Device::parse("cpu:64"), kUnavailable, "cpu:64 is unavailable");
  EXPECT_ERROR(Tensor::zeros({2}, DType::kFloat32, {DeviceType::kGpu, 77}), kUnavailable,
               "gpu:77 is unavailable");
}

TEST(Device, ParsesRangesAndRejectsGapsAndDuplicates) {
  const auto cpu = [](int index) { return Device{DeviceType::kCpu, index}; };
  EXPECT_EQ(parse_devices("cpu:0-3"), (std::vector{cpu(0), cpu(1), cpu(2), cpu(3)}));
  EXPECT_EQ(parse_devices("cpu:4"), (std::vector{cpu(4)}));
  // The result preserves the order of the names.
  EXPECT_EQ(parse_devices("cpu:2, cpu:0"), (std::vector{cpu(2), cpu(0)}));
  EXPECT_EQ(parse_devices("cpu:0-1,cpu:5-5"), (std::vector{cpu(0), cpu(1), cpu(5)}));
  EXPECT_FALSE(default_devices().empty());
  EXPECT_INVALID(parse_devices(""), "empty");
  EXPECT_INVALID(parse_devices("cpu:0,"), "empty");
  EXPECT_INVALID(parse_devices("cpu:0-2,cpu:1"), "cpu:1 is listed twice");
  EXPECT_INVALID(parse_devices("cpu:3-1"), "cpu:3-1");
  EXPECT_ERROR(parse_devices("cpu:62-64"), kUnavailable, "cpu:64");
  EXPECT_ERROR(parse_devices("gpu:77,gpu:78"), kUnavailable, "gpu:77");
}

TEST(DeviceSpec, RoundTripsThroughText) {
  for (const char* text : {"", "/job:worker", "/job:worker/replica:0/task:1/device:GPU:0",
                           "/task:3", "/job:ps/device:CPU:1", "/device:GPU:*"}) {
    EXPECT_EQ(DeviceSpec::parse(text).to_string(), text);
  }
  EXPECT_EQ(DeviceSpec::parse("/job:a/gpu:2").to_string(), "/job:a/device:GPU:2");
  EXPECT_EQ(DeviceSpec::parse("/device:GPU").to_string(), "/device:GPU:*");
}

TEST(DeviceSpec, ParseDoesNotRequireExistingDevice) {
  const DeviceSpec spec = DeviceSpec::parse("/job:worker/task:7/device:GPU:99");
  EXPECT_EQ(spec.job, "worker");
  EXPECT_EQ(spec.task, 7);
  EXPECT_EQ(spec.type, DeviceType::kGpu);
  EXPECT_EQ(spec.index, 99);
  EXPECT_FALSE(spec.replica);
  EXPECT_ERROR(resolve(spec), kUnavailable, "gpu:99", "cpu:0 ... cpu:63");
}

TEST(DeviceSpec, ErrorNamesInvalidField) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"job:a", "no '/' in front"},
      {"/job:", "no name"},
      {"/task:-1", "neither a whole number"},
      {"/device:FPGA:0", "not one of CPU, GPU, XLA"},
      {"/job:a/job:b", "is listed twice"},
      {"/gpu:0/device:CPU:0", "is listed twice"},
      {"/color:red", "no such part"},
      {"/task:99999999999", "neither a whole number"},
      {"/cpu:0/cpu:1", "is listed twice"},
      {"/device:CPU:x", "neither a whole number"},
      {"/job:a/task:x", "'task:x'"},
      {"/device:CPU:0:1", ""},
      {"/task:1:2", ""},
      {"/job", ""},
      {"//", ""},
  };
  for (const auto& [wrong, reason] : cases) {
    const char* const text = wrong;  // clang 14 cannot capture a structured binding
    EXPECT_INVALID(DeviceSpec::parse(text), "DeviceSpec::parse", text, reason);
  }
}

TEST(DeviceSpec, FieldsAreReplacedMergedAndResolved) {
  DeviceSpec spec = DeviceSpec::parse("/job:worker/replica:0/task:1/device:GPU:0");
  spec.task = 4;
  spec.index.reset();
  EXPECT_EQ(spec.to_string(), "/job:worker/replica:0/task:4/device:GPU:*");
  const DeviceSpec outer = DeviceSpec::parse("/job:worker/task:1/device:GPU:0");
  const DeviceSpec merged = outer.merged_with(DeviceSpec::parse("/task:2/device:CPU:*"));
  EXPECT_EQ(merged.to_string(), "/job:worker/task:2/device:CPU:0");
  EXPECT_EQ(outer.merged_with({}), outer);
  EXPECT_EQ((DeviceSpec{.job = "worker", .index = 2}).to_string(), "/job:worker");
  EXPECT_EQ(resolve({}), (Device{DeviceType::kCpu, 0}));
  EXPECT_EQ(resolve(DeviceSpec::parse("/job:worker/cpu:5")), (Device{DeviceType::kCpu, 5}));
}

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

/// Changes the task name of this process for the lifetime of this object.
struct AsTask {
  explicit AsTask(const char* spec) { set_process_spec(DeviceSpec::parse(spec)); }
  ~AsTask() { set_process_spec({}); }
};

/// Collects the lines of the device placement log during this object's lifetime.
struct LoggedLines {
  LoggedLines() {
    set_log_device_placement(true, [this](const std::string& line) { lines.push_back(line); });
  }
  ~LoggedLines() { set_log_device_placement(false); }
  std::vector<std::string> lines;
};

TEST(DeviceScope, InnerFieldsOverrideOuterFields) {
  EXPECT_EQ(current_device_scope(), DeviceSpec());
  EXPECT_EQ(current_device(), on_cpu(0));
  const DeviceScope outer("/cpu:0");
  EXPECT_EQ(current_device_scope().to_string(), "/device:CPU:0");
  {
    const DeviceScope inner("/device:CPU:1");
    EXPECT_EQ(current_device(), on_cpu(1));
    {
      const DeviceScope job("/job:localhost/replica:0/task:0");
      EXPECT_EQ(job.merged().to_string(), "/job:localhost/replica:0/task:0/device:CPU:1");
      EXPECT_EQ(current_device(), on_cpu(1));
      const DeviceScope innermost("cpu:2");
      EXPECT_EQ(current_device_scope().to_string(), "/job:localhost/replica:0/task:0/device:CPU:2");
    }
    EXPECT_EQ(current_device(), on_cpu(1));
  }
  EXPECT_EQ(current_device(), on_cpu(0));
}

TEST(DeviceScope, AcceptsEverySpellingOfDevice) {
  EXPECT_INVALID(DeviceScope scope("/fpga:0"), "fpga:0");
  EXPECT_ERROR(DeviceScope scope("cpu:64"), kUnavailable, "cpu:64", "available devices: cpu:0");
  // The failed constructor did not change the current scope.
  EXPECT_EQ(current_device_scope(), DeviceSpec());
  for (const char* text : {"/cpu:3", "cpu:3", "/CPU:3", "/device:CPU:3", "/job:localhost/cpu:3"}) {
    const DeviceScope scope(text);
    EXPECT_EQ(current_device(), on_cpu(3)) << text;
  }
  const DeviceScope value(on_cpu(4));
  EXPECT_EQ(current_device(), on_cpu(4));
  const DeviceScope without_index("/device:CPU:*");  // keeps the index of the outer scope
  EXPECT_EQ(current_device(), on_cpu(4));
}

TEST(DeviceScope, ConstantsAreCreatedOnScopeDevice) {
  const DeviceScope scope("cpu:2");
  EXPECT_EQ(Tensor(3.0f).device(), on_cpu(2));
  EXPECT_EQ(Tensor::zeros({2}).device(), on_cpu(2));
  EXPECT_EQ(Tensor::ones({2}).device(), on_cpu(2));
  EXPECT_EQ(Tensor::full({2}, 1.5).device(), on_cpu(2));
  EXPECT_EQ(Tensor::scalar(1.5, DType::kFloat64).device(), on_cpu(2));
  EXPECT_EQ(Tensor::from<float>({2}, {1.0f, 2.0f}).device(), on_cpu(2));
  EXPECT_EQ(random_uniform({2}, {.seed = 1}).device(), on_cpu(2));
  // an explicit device overrides the scope
  EXPECT_EQ(Tensor::zeros({2}, DType::kFloat32, on_cpu(5)).device(), on_cpu(5));
  const NoDeviceScope none;
  EXPECT_EQ(Tensor::zeros({2}).device(), on_cpu(0));
}

TEST(DeviceScope, OperationsRunOnScopeDeviceAndMoveInputs) {
  const Tensor a = Tensor::from<float>({2}, {1, 2}, on_cpu(1));
  const Tensor b = Tensor::from<float>({2}, {10, 20}, on_cpu(3));
  const DeviceScope scope("cpu:2");
  TransferLog log;
  const Tensor sum = a + b;
  EXPECT_EQ(sum.device(), on_cpu(2));
  expect_tensor(sum, {2}, {11, 22});
  ASSERT_EQ(log.count(), 2u);
  EXPECT_EQ(log.bytes(), 16u);
  EXPECT_EQ(log.transfers()[0].to_string(), "cpu:1 -> cpu:2: float32 [2], 8 bytes");
  EXPECT_EQ(log.transfers()[1].to_string(), "cpu:3 -> cpu:2: float32 [2], 8 bytes");
  log.clear();
  // a scalar is created on the device of the other operand
  expect_tensor(sum * 2.0f, {2}, {22, 44});
  EXPECT_EQ(log.count(), 0u);
  // reshape() computes nothing, but also moves its input.
  EXPECT_EQ(reshape(a, {2, 1}).device(), on_cpu(2));
  EXPECT_EQ(log.count(), 1u);
}

TEST(DeviceScope, InputsOnDifferentDevicesFailWithoutScope) {
  const Tensor a = Tensor::ones({2}, DType::kFloat32, on_cpu(1));
  const Tensor b = Tensor::ones({2}, DType::kFloat32, on_cpu(2));
  const auto add = [&] { return a + b; };
  expect_error(ErrorCode::kInvalidArgument, {"several devices", "cpu:1 and cpu:2", "DeviceScope"},
               add);
  {
    const DeviceScope scope("/job:localhost");  // this scope names no device
    expect_error(ErrorCode::kInvalidArgument, {"several devices"}, add);
  }
  const DeviceScope outer("cpu:1");
  const NoDeviceScope none;
  expect_error(ErrorCode::kInvalidArgument, {"several devices"}, add);
}

TEST(DeviceScope, OperationOnRemoteTaskFailsAndNamesTask) {
  const AsTask process("/job:worker/task:0");
  EXPECT_EQ(full_device_name(on_cpu(1)), "/job:worker/replica:0/task:0/device:CPU:1");
  const Tensor x = Tensor::ones({2});
  {
    const DeviceScope own("/job:worker/replica:0/task:0/cpu:1");
    EXPECT_FALSE(own.is_remote());
    EXPECT_EQ(negate(x).device(), on_cpu(1));
  }
  // the scope does not check that the remote GPU exists
  const DeviceScope other("/job:worker/task:1/gpu:7");
  EXPECT_TRUE(other.is_remote());
  const std::vector<std::string> parts{"'/job:worker/task:1/device:GPU:7'",
                                       "'/job:worker/replica:0/task:0'", "session.scope()"};
  expect_error(ErrorCode::kUnavailable, parts, [] { Tensor::zeros({2}); });
  expect_error(ErrorCode::kUnavailable, parts, [&] { negate(x); });
  EXPECT_ERROR(negate(x), kUnavailable, "negate at device_test.cc");
  const DeviceScope here("/job:localhost/task:0/cpu:0");
  EXPECT_FALSE(here.is_remote());
  EXPECT_EQ(negate(x).device(), on_cpu(0));
}

TEST(DeviceScope, AppliesOnlyToThreadThatEnteredIt) {
  const DeviceScope scope("cpu:1");
  const DeviceSpec spec = current_device_scope();
  Device without, with;
  Executor::system()
      .start("other",
             [&] {
               without = current_device();
               const DeviceScope handed(spec);
               with = current_device();
             })
      ->join();
  EXPECT_EQ(without, on_cpu(0));
  EXPECT_EQ(with, on_cpu(1));
}

TEST(DeviceScope, TransferCopiesOnlyToDifferentDevice) {
  const Tensor x = Tensor::ones({3});
  TransferLog log;
  EXPECT_EQ(transfer(x, on_cpu(0)).id(), x.id());
  EXPECT_EQ(log.count(), 0u);
  const Tensor moved = transfer(x, on_cpu(1));
  EXPECT_EQ(moved.device(), on_cpu(1));
  EXPECT_NE(moved.id(), x.id());
  EXPECT_EQ(log.count(), 1u);
  EXPECT_ERROR(transfer(Tensor(), on_cpu(1)), kFailedPrecondition, "transfer at device_test.cc",
               "undefined");
}

TEST(DeviceScope, WorksWithGpus) {
  FakeGpus gpus;
  const Tensor on_host = Tensor::from<float>({3}, {1, 2, 3});
  TransferLog log;
  Tensor y;
  {
    const DeviceScope scope("/gpu:1");
    EXPECT_EQ(Tensor(2.0f).device(), (Device{DeviceType::kGpu, 1}));
    EXPECT_EQ(Tensor(2.0f).item(), 2.0f);
    const Tensor constant = Tensor::from<float>({3}, {10, 20, 30});
    y = (on_host + constant) * 2.0f;
  }
  EXPECT_EQ(y.device(), (Device{DeviceType::kGpu, 1}));
  expect_tensor(y, {3}, {22, 44, 66});
  ASSERT_EQ(log.count(), 1u);
  EXPECT_EQ(log.transfers()[0].to_string(), "cpu:0 -> gpu:1: float32 [3], 12 bytes");
  EXPECT_EQ(device_memory({DeviceType::kGpu, 1}).in_use, 256u * 1);
}

// The format is that of TensorFlow's tf.debugging.set_log_device_placement().
TEST(PlacementLog, LinesMatchTensorFlowFormat) {
  const Tensor x = Tensor::ones({2, 2});
  LoggedLines log;
  const Tensor y = matmul(x, x);
  {
    const DeviceScope scope("/device:CPU:1");
    reduce_sum(relu(y));
  }
  set_log_device_placement(false);
  negate(x);
  EXPECT_THAT(log.lines, ElementsAre("MatMul: /job:localhost/replica:0/task:0/device:CPU:0",
                                     "Relu: /job:localhost/replica:0/task:0/device:CPU:1",
                                     "Sum: /job:localhost/replica:0/task:0/device:CPU:1"));
}

TEST(PlacementLog, EveryOperationHasTensorFlowName) {
  for (std::size_t op = 0; op < static_cast<std::size_t>(OpId::kCount); ++op) {
    EXPECT_FALSE(tf_op_name(static_cast<OpId>(op)).empty()) << op;
  }
  EXPECT_EQ(tf_op_name(OpId::kAdd), "AddV2");
  EXPECT_EQ(tf_op_name(OpId::kConv2d), "Conv2D");
  EXPECT_EQ(tf_op_name(OpId::kReduceMean), "Mean");
  EXPECT_EQ(tf_op_name(OpId::kSparseSoftmaxCrossEntropy), "SparseSoftmaxCrossEntropyWithLogits");
  EXPECT_EQ(tf_op_name(OpId::kTopK), "TopKV2");
  EXPECT_EQ(tf_op_name(OpId::kDropout), "Dropout");
}

struct OpLog : OpObserver {
  void on_op(const OpCall& call, std::span<const Tensor> outputs) override {
    ops.push_back(call.op);
    last_output = outputs[0].id();
    last_line = call.where.line();
  }
  std::vector<OpId> ops;
  std::uint64_t last_output = 0;
  std::uint32_t last_line = 0;
};

TEST(Dispatch, ObserversSeeCompletedOperations) {
  OpLog log;
  const Tensor x = Tensor::ones({2});
  Tensor y;
  {
    const ObserverScope scope(log);
    y = relu(x + x);
    EXPECT_EQ(log.last_line, static_cast<std::uint32_t>(__LINE__ - 1));
  }
  negate(y);
  EXPECT_EQ(log.ops, (std::vector{OpId::kAdd, OpId::kRelu}));
  EXPECT_EQ(log.last_output, y.id());
}

TEST(Dispatch, ObserverScopesCanEndInAnyOrder) {
  OpLog first, second;
  const Tensor x = Tensor::ones({2});
  std::optional<ObserverScope> outer(std::in_place, first);
  std::optional<ObserverScope> inner(std::in_place, second);
  negate(x);
  outer.reset();
  square(x);
  inner.reset();
  exp(x);
  EXPECT_EQ(first.ops, (std::vector{OpId::kNegate}));
  EXPECT_EQ(second.ops, (std::vector{OpId::kNegate, OpId::kSquare}));
}

TEST(Dispatch, ObserversSeeOnlyOperationsOfTheirThread) {
  OpLog log;
  const ObserverScope scope(log);
  const Tensor x = Tensor::ones({2});
  Executor::system().start("other", [&x] { negate(x); })->join();
  EXPECT_TRUE(log.ops.empty());
  negate(Tensor::zeros({0, 3}));
  EXPECT_EQ(log.ops.size(), 1u);
}

TEST(Dispatch, RejectsMixedDevicesAndMissingKernels) {
  const Tensor here = Tensor::ones({2});
  const Tensor there = here.to({DeviceType::kCpu, 1});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at device_test.cc:", __LINE__ + 1), "cpu:0", "cpu:1", "call to()"},
               [&] { here + there; });
  EXPECT_EQ((there + there).device(), there.device());
  EXPECT_EQ((there * 2).device(), there.device());  // a scalar adopts the tensor's device
  OpCall call;
  call.op = OpId::kExp;
  call.where = SourceLocation::current();
  call.inputs = {Tensor::zeros({2}, DType::kBool)};
  call.outputs = {{{2}, DType::kBool}};
  EXPECT_ERROR(dispatch(call), kUnimplemented, "exp at device_test.cc", "bool", "cpu:0");
}

TEST(Dispatch, ViewsShareStorageButHaveNewIdentity) {
  const Tensor x = Tensor::from<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  OpLog log;
  const ObserverScope scope(log);
  const Tensor reshaped = reshape(x, {2, 4});
  const Tensor stopped = stop_gradient(x);
  const Tensor rows = slice(x, {1, 0}, {2, -1});
  EXPECT_EQ(log.ops, (std::vector{OpId::kReshape, OpId::kStopGradient, OpId::kSlice}));
  EXPECT_EQ(reshaped.bytes().data(), x.bytes().data());
  EXPECT_EQ(stopped.bytes().data(), x.bytes().data());
  EXPECT_EQ(rows.bytes().data(), x.bytes().data() + 8);
  EXPECT_NE(reshaped.id(), x.id());
  EXPECT_NE(stopped.id(), x.id());
  expect_tensor(rows, {2, 2}, {2, 3, 4, 5});
  EXPECT_NE(slice(x, {0, 1}, {4, 1}).bytes().data(), x.bytes().data() + 4);
}

TEST(KernelTable, FindsRegisteredKernels) {
  KernelTable table;
  EXPECT_EQ(table.find(OpId::kAdd, DType::kFloat32), nullptr);
  const Kernel kernel = [](const KernelArgs& args) { args.out<float>(0)[0] = 42.0f; };
  table.set(OpId::kAdd, DType::kFloat32, kernel);
  EXPECT_EQ(table.find(OpId::kAdd, DType::kFloat32), kernel);
  EXPECT_EQ(table.find(OpId::kAdd, DType::kFloat64), nullptr);
  OpCall call;
  call.op = OpId::kAdd;
  call.inputs = {Tensor(1.0f), Tensor(2.0f)};
  call.outputs = {{{}, DType::kFloat32}};
  EXPECT_EQ(run_kernel(table, call)[0].item(), 42.0f);
}

TEST(Buffer, IsAlignedAndWastesAtMostAQuarter) {
  for (std::size_t size = 0; size < 5000; size = size * 5 / 4 + 1) {
    const BufferRef buffer = BufferRef::allocate(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u) << size;
    EXPECT_EQ(buffer->size(), size);
    std::memset(buffer->data(), 1, size);  // lets a sanitizer detect a size class that is too small
  }
  trim_allocator_cache();
  for (std::size_t size = 257; size < 3'000'000; size = size * 9 / 8 + 1) {
    const std::size_t before = allocator_statistics().in_use;
    const BufferRef buffer = BufferRef::allocate(size);
    const std::size_t taken = allocator_statistics().in_use - before;
    EXPECT_GE(taken, size);
    EXPECT_LE(taken, size + size / 4 + 64) << size;
  }
}

TEST(Buffer, IsReusedAfterLastReferenceIsDropped) {
  trim_allocator_cache();
  const AllocatorStatistics before = allocator_statistics();
  const std::byte* first = BufferRef::allocate(1000)->data();
  EXPECT_EQ(allocator_statistics().in_use, before.in_use);
  EXPECT_GE(allocator_statistics().cached, 1000u);
  const BufferRef again =
      BufferRef::allocate(1010);  // 1000 and 1010 bytes have the same size class
  EXPECT_EQ(again->data(), first);
  const BufferRef other = BufferRef::allocate(1000);
  EXPECT_NE(other->data(), first);
  const AllocatorStatistics after = allocator_statistics();
  EXPECT_EQ(after.allocations, before.allocations + 3);
  EXPECT_EQ(after.cache_hits, before.cache_hits + 1);
}

TEST(Buffer, CopyingAddsReferenceAndMovingDoesNot) {
  BufferRef a = BufferRef::allocate(10);
  EXPECT_TRUE(a.unique());
  {
    const BufferRef b = a;
    EXPECT_FALSE(a.unique());
    EXPECT_EQ(a.get(), b.get());
  }
  EXPECT_TRUE(a.unique());
  const BufferRef c = std::move(a);
  EXPECT_TRUE(c.unique());
  EXPECT_FALSE(a);  // NOLINT: the state after a move is part of the contract
}

TEST(Buffer, TrimEmptiesTheCache) {
  { const BufferRef buffer = BufferRef::allocate(100'000); }
  EXPECT_GT(allocator_statistics().cached, 0u);
  trim_allocator_cache();
  EXPECT_EQ(allocator_statistics().cached, 0u);
}

TEST(Buffer, CacheKeepsNewestBuffersWithinLimit) {
  trim_allocator_cache();
  constexpr std::size_t kPiece = std::size_t{384} << 20;  // large, but the memory is never touched
  {
    std::vector<BufferRef> buffers;
    for (std::size_t i = 0; i < 4; ++i)
      buffers.push_back(BufferRef::allocate(kPiece + i * kPiece / 4));
  }
  const AllocatorStatistics statistics = allocator_statistics();
  EXPECT_LE(statistics.cached, kMaxCachedBytes);
  EXPECT_GT(statistics.cached, 0u);
  const BufferRef last = BufferRef::allocate(kPiece + 3 * kPiece / 4);
  EXPECT_EQ(allocator_statistics().cache_hits, statistics.cache_hits + 1);
  trim_allocator_cache();
}

TEST(Buffer, TracksPeakUseAndRejectsImpossibleSizes) {
  const std::size_t in_use = allocator_statistics().in_use;
  { const BufferRef buffer = BufferRef::allocate(50'000'000); }
  EXPECT_GE(allocator_statistics().peak_in_use, in_use + 50'000'000);
  EXPECT_ERROR(BufferRef::allocate(std::size_t{1} << 62), kResourceExhausted, "no memory");
}

TEST(Buffer, ThreadsShareTheCache) {
  // Each thread creates tensors of many sizes, keeps some of them, and passes some to the main
  // thread, which releases them.
  constexpr int kThreads = 4;
  std::vector<std::vector<Tensor>> handed(kThreads);
  const std::size_t in_use = allocator_statistics().in_use;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.push_back(Executor::system().start("allocator-test", [&handed, t] {
        std::vector<Tensor> alive(16);
        for (int i = 0; i < 2000; ++i) {
          const std::int64_t size = 1 + (i * 37 + t * 11) % 3000;
          const Tensor tensor = Tensor::full({size}, i);
          const Tensor sum = tensor + alive.front().defined();
          alive[static_cast<std::size_t>(i) % alive.size()] = sum;
          if (i % 100 == 0) handed[static_cast<std::size_t>(t)].push_back(tensor);
        }
      }));
    }
  }
  double sum = 0.0;
  for (const auto& tensors : handed) {
    for (const Tensor& tensor : tensors) sum += tensor.to_doubles().back();
  }
  EXPECT_EQ(sum, kThreads * 19000.0);  // each thread contributes 0 + 100 + ... + 1900
  handed.clear();
  EXPECT_EQ(allocator_statistics().in_use, in_use);
}

TEST(Buffer, SupportsConcurrentReadersThenOneWriter) {
  MutableTensor value({1000}, DType::kFloat32, {});
  std::ranges::fill(value.span<float>(), 1.0f);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> sums(3);
    std::vector<std::unique_ptr<Thread>> threads;
    for (double& sum : sums) {
      threads.push_back(Executor::system().start("reader", [&sum, view = value.freeze()]() mutable {
        const auto elements = view.host_span<float>();
        sum = std::accumulate(elements.begin(), elements.end(), 0.0);
        view = Tensor();
      }));
    }
    value.make_unique();  // readers may still be using the old storage
    for (float& x : value.span<float>()) x += 1.0f;
    threads.clear();  // joins the readers
    for (double sum : sums) EXPECT_EQ(sum, 1000.0 * (round + 1));
  }
}

TEST(CopyPastCachesTest, CopiesExactBytesAtAnyLengthAndOffset) {
  constexpr std::byte kUntouched{0xA5};
  std::vector<std::byte> from(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t begin = 0; begin < 66; ++begin) {
    for (const std::size_t count : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 500}) {
      std::vector<std::byte> to(from.size(), kUntouched);
      internal::copy_past_caches(to.data() + begin, from.data() + 3, count);
      internal::finish_copies();
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool is_copy = i >= begin && i < begin + count;
        ASSERT_EQ(to[i], is_copy ? from[3 + i - begin] : kUntouched)
            << "byte " << i << " of " << count << " from " << begin;
      }
    }
  }
}

/// Returns a buffer of 64 floats, 0 to 63.
BufferRef numbered_buffer() {
  BufferRef buffer = BufferRef::allocate(256);
  for (int i = 0; i < 64; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(buffer->data() + 4 * i, &value, 4);
  }
  return buffer;
}

TEST(TensorInBuffer, SharesBufferMemoryAndKeepsItAlive) {
  BufferRef buffer = numbered_buffer();
  const std::byte* const place = buffer->data() + 64;
  const Tensor tensor = tensor_in_buffer(buffer, 64, {2, 2}, DType::kFloat32);
  buffer = BufferRef();
  EXPECT_EQ(tensor.bytes().data(), place);
  expect_tensor(tensor, {2, 2}, {16, 17, 18, 19});
  EXPECT_EQ(tensor_in_buffer(numbered_buffer(), 256, {0}, DType::kFloat64).num_elements(), 0);
}

TEST(TensorInBuffer, WriteToAssignedVariableCopiesMemory) {
  const BufferRef buffer = numbered_buffer();
  MutableTensor variable({64}, DType::kFloat32, Device{});
  variable.assign(tensor_in_buffer(buffer, 0, {64}, DType::kFloat32));
  EXPECT_EQ(variable.data(), buffer->data());
  variable.make_unique();
  EXPECT_NE(variable.data(), buffer->data());
  variable.span<float>()[3] = -1.0f;
  float kept = 0.0f;
  std::memcpy(&kept, buffer->data() + 12, 4);
  EXPECT_EQ(kept, 3.0f);
}

TEST(TensorInBuffer, AssignmentCopiesPartialBuffer) {
  const BufferRef buffer = numbered_buffer();
  MutableTensor variable({4}, DType::kFloat32, Device{});
  const std::byte* const own = variable.data();
  variable.assign(tensor_in_buffer(buffer, 64, {4}, DType::kFloat32));
  EXPECT_EQ(variable.data(), own);
  const Tensor read = variable.freeze();
  variable.assign(tensor_in_buffer(buffer, 128, {4}, DType::kFloat32));
  EXPECT_NE(variable.data(), own);
  EXPECT_NE(variable.data(), buffer->data() + 128);
  expect_tensor(read, {4}, {16, 17, 18, 19});
  expect_tensor(variable.freeze(), {4}, {32, 33, 34, 35});
}

TEST(TensorInBuffer, RejectsInvalidOffsets) {
  const BufferRef buffer = numbered_buffer();
  const auto make = [&](std::size_t offset, const Shape& shape) {
    (void)tensor_in_buffer(buffer, offset, shape, DType::kFloat32);
  };
  make(192, {16});
  EXPECT_INVALID(make(192, {17}), "68 bytes", "buffer of 256", "offset 192");
  EXPECT_INVALID(make(320, {0}), "offset 320");
  EXPECT_INVALID(make(32, {1}), "multiple of 64", "offset 32");
  EXPECT_INVALID((void)tensor_in_buffer({}, 0, {1}, DType::kFloat32), "buffer of 0 bytes");
}

constexpr Device kOwn{DeviceType::kCpu, 61};
constexpr Device kOther{DeviceType::kCpu, 62};
constexpr std::int64_t kKibi = 256;  // number of float32 elements in 1 KiB

/// Gives device kOwn separate memory, limited to `bytes`, for the lifetime of this object.
struct OwnMemory {
  explicit OwnMemory(std::size_t bytes = kUnlimitedMemory) {
    set_memory_limit(kOwn, bytes);
    trim_allocator_cache(kOwn);
    reset_peak_memory(kOwn);
  }
  ~OwnMemory() { clear_memory_limit(kOwn); }
};

Tensor zeros_there(std::int64_t kibibytes) {
  return Tensor::zeros({kibibytes * kKibi}, DType::kFloat32, kOwn);
}

TEST(DeviceMemory, TracksCurrentAndPeakUse) {
  const OwnMemory memory;
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  {
    const Tensor a = zeros_there(4);
    const Tensor b = zeros_there(8);
    EXPECT_EQ(device_memory(kOwn).in_use, 12u << 10);
  }
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  EXPECT_EQ(device_memory(kOwn).peak, 12u << 10);
  EXPECT_EQ(device_memory(kOwn).limit, kUnlimitedMemory);
  const Tensor c = zeros_there(1);
  reset_peak_memory(kOwn);
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
}

TEST(DeviceMemory, IsCountedSeparatelyFromOtherDevices) {
  const OwnMemory memory;
  const std::size_t shared = device_memory(kOther).in_use;
  const Tensor here = Tensor::zeros({kKibi}, DType::kFloat32, kOther);
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  EXPECT_EQ(device_memory(kOther).in_use, shared + (1u << 10));
}

TEST(DeviceMemory, ErrorForRequestBeyondLimitStatesSizes) {
  const OwnMemory memory(16u << 10);
  std::optional<Tensor> first = zeros_there(12);
  EXPECT_ERROR(zeros_there(8), kResourceExhausted, "cpu:61: no memory for 8192 bytes",
               "12288 in use", "limit 16384",
               "try a smaller batch, or place parts of the model on several devices");
  EXPECT_EQ(device_memory(kOwn).in_use, 12u << 10);  // the failed call did not allocate
  EXPECT_EQ(device_memory(kOwn).peak, 12u << 10);
  first.reset();
  EXPECT_NO_THROW(zeros_there(8));  // releases cached memory to make room
}

TEST(DeviceMemory, CopiesValuesFromDifferentDevice) {
  const Tensor x = Tensor::full({kKibi}, 2.0, DType::kFloat32, kOther);
  // without OwnMemory, CPU devices share the host's memory
  EXPECT_EQ(x.to(kOwn).address(), x.address());
  const OwnMemory memory;
  const Tensor moved = x.to(kOwn);
  EXPECT_NE(moved.address(), x.address());
  EXPECT_EQ(moved.to_doubles(), x.to_doubles());
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
  EXPECT_NE(moved.to(kOther).address(), moved.address());
}

TEST(DeviceMemory, VariableMemoryIsCountedOnce) {
  const OwnMemory memory;
  const Tensor initial = Tensor::zeros({kKibi}, DType::kFloat32, kOther);
  const auto variable = std::make_shared<VariableMemory>(initial, kOwn);
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
  (void)variable->writable();  // no copy: the variable's memory is not shared
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
  variable->assign(negate(variable->read()));
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
}

TEST(DeviceMemory, LimitForUnavailableGpuFails) {
  EXPECT_ERROR(set_memory_limit({DeviceType::kGpu, 63}, 1), kUnavailable, "gpu:63");
}

}  // namespace tutti::testing::device_test
