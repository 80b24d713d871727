// Device scopes: nesting, what is made and run where, other processes, transfers, the placement
// log.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_scope.h"

#include <gmock/gmock.h>

#include "tests/support/fake_gpu.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using testing::expect_error;
using testing::expect_tensor;

namespace device_scope_test {

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

/// While it lives this process is another task.
struct AsTask {
  explicit AsTask(const char* spec) { set_process_spec(DeviceSpec::parse(spec)); }
  ~AsTask() { set_process_spec({}); }
};

/// The lines of the placement log while it lives.
struct LoggedLines {
  LoggedLines() {
    set_log_device_placement(true, [this](const std::string& line) { lines.push_back(line); });
  }
  ~LoggedLines() { set_log_device_placement(false); }
  std::vector<std::string> lines;
};

}  // namespace device_scope_test

using device_scope_test::on_cpu;

TEST(DeviceScope, InnerPartsOverrideOuterOnes) {
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

TEST(DeviceScope, SpellingsOfOneDevice) {
  for (const char* text : {"/cpu:3", "cpu:3", "/CPU:3", "/device:CPU:3", "/job:localhost/cpu:3"}) {
    const DeviceScope scope(text);
    EXPECT_EQ(current_device(), on_cpu(3)) << text;
  }
  const DeviceScope value(on_cpu(4));
  EXPECT_EQ(current_device(), on_cpu(4));
  const DeviceScope without_index("/device:CPU:*");  // the outer index stays
  EXPECT_EQ(current_device(), on_cpu(4));
}

TEST(DeviceScope, NamesWhatItCannotReadOrDoesNotHave) {
  expect_error(ErrorCode::kInvalidArgument, {"fpga:0"}, [] { DeviceScope scope("/fpga:0"); });
  expect_error(ErrorCode::kUnavailable, {"cpu:64", "devices here: cpu:0"},
               [] { DeviceScope scope("cpu:64"); });
  EXPECT_EQ(current_device_scope(), DeviceSpec());  // a scope that was not made is not open
}

TEST(DeviceScope, ConstantsAreMadeOnItsDevice) {
  const DeviceScope scope("cpu:2");
  EXPECT_EQ(Tensor(3.0f).device(), on_cpu(2));
  EXPECT_EQ(Tensor::zeros({2}).device(), on_cpu(2));
  EXPECT_EQ(Tensor::ones({2}).device(), on_cpu(2));
  EXPECT_EQ(Tensor::full({2}, 1.5).device(), on_cpu(2));
  EXPECT_EQ(Tensor::scalar(1.5, DType::kFloat64).device(), on_cpu(2));
  EXPECT_EQ(Tensor::from<float>({2}, {1.0f, 2.0f}).device(), on_cpu(2));
  EXPECT_EQ(random_uniform({2}, {.seed = 1}).device(), on_cpu(2));
  EXPECT_EQ(Tensor::zeros({2}, DType::kFloat32, on_cpu(5)).device(), on_cpu(5));  // named: there
  const NoDeviceScope none;
  EXPECT_EQ(Tensor::zeros({2}).device(), on_cpu(0));
}

TEST(DeviceScope, OperationsRunOnItsDeviceAndInputsAreMovedThere) {
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
  expect_tensor(sum * 2.0f, {2}, {22, 44});  // numbers are made where they are wanted
  EXPECT_EQ(log.count(), 0u);
  EXPECT_EQ(reshape(a, {2, 1}).device(), on_cpu(2));  // also operations that compute nothing
  EXPECT_EQ(log.count(), 1u);
}

TEST(DeviceScope, WithoutOneInputsMustBeTogether) {
  const Tensor a = Tensor::ones({2}, DType::kFloat32, on_cpu(1));
  const Tensor b = Tensor::ones({2}, DType::kFloat32, on_cpu(2));
  const auto add = [&] { return a + b; };
  expect_error(ErrorCode::kInvalidArgument, {"several devices", "cpu:1 and cpu:2", "DeviceScope"},
               add);
  {
    const DeviceScope scope("/job:localhost");  // names no device
    expect_error(ErrorCode::kInvalidArgument, {"several devices"}, add);
  }
  const DeviceScope outer("cpu:1");
  const NoDeviceScope none;
  expect_error(ErrorCode::kInvalidArgument, {"several devices"}, add);
}

TEST(DeviceScope, OtherTasksAreRefusedByName) {
  const device_scope_test::AsTask process("/job:worker/task:0");
  EXPECT_EQ(full_device_name(on_cpu(1)), "/job:worker/replica:0/task:0/device:CPU:1");
  const Tensor x = Tensor::ones({2});
  {
    const DeviceScope own("/job:worker/replica:0/task:0/cpu:1");
    EXPECT_FALSE(own.is_remote());
    EXPECT_EQ(negate(x).device(), on_cpu(1));
  }
  const DeviceScope other("/job:worker/task:1/gpu:7");  // nobody looks whether it is there
  EXPECT_TRUE(other.is_remote());
  const std::vector<std::string> parts{"'/job:worker/task:1/device:GPU:7'",
                                       "'/job:worker/replica:0/task:0'", "run() of a Session"};
  expect_error(ErrorCode::kUnavailable, parts, [] { Tensor::zeros({2}); });
  expect_error(ErrorCode::kUnavailable, parts, [&] { negate(x); });
  expect_error(ErrorCode::kUnavailable, {"negate at device_scope_test.cc"}, [&] { negate(x); });
  const DeviceScope here("/job:localhost/task:0/cpu:0");
  EXPECT_FALSE(here.is_remote());
  EXPECT_EQ(negate(x).device(), on_cpu(0));
}

TEST(DeviceScope, BelongsToItsThread) {
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

TEST(DeviceScope, TransfersCanBeAskedFor) {
  const Tensor x = Tensor::ones({3});
  TransferLog log;
  EXPECT_EQ(transfer(x, on_cpu(0)).id(), x.id());
  EXPECT_EQ(log.count(), 0u);
  const Tensor moved = transfer(x, on_cpu(1));
  EXPECT_EQ(moved.device(), on_cpu(1));
  EXPECT_NE(moved.id(), x.id());
  EXPECT_EQ(log.count(), 1u);
  expect_error(ErrorCode::kFailedPrecondition, {"transfer at device_scope_test.cc", "undefined"},
               [] { transfer(Tensor(), on_cpu(1)); });
}

TEST(DeviceScope, WorksWithGpus) {
  testing::FakeGpus gpus;
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

// Lines as TensorFlow's log_device_placement writes them.
TEST(PlacementLog, GoldenLines) {
  const Tensor x = Tensor::ones({2, 2});
  device_scope_test::LoggedLines log;
  const Tensor y = matmul(x, x);
  {
    const DeviceScope scope("/device:CPU:1");
    reduce_sum(relu(y));
  }
  set_log_device_placement(false);
  negate(x);
  EXPECT_THAT(log.lines,
              ::testing::ElementsAre("MatMul: /job:localhost/replica:0/task:0/device:CPU:0",
                                     "Relu: /job:localhost/replica:0/task:0/device:CPU:1",
                                     "Sum: /job:localhost/replica:0/task:0/device:CPU:1"));
}

TEST(PlacementLog, EveryOperationHasAName) {
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

}  // namespace
}  // namespace tutti
