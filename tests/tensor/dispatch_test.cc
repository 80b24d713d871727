// Dispatch: observers, devices, missing kernels, views.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/dispatch.h"

#include <gtest/gtest.h>

#include <optional>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using testing::expect_error;
using testing::expect_tensor;

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

TEST(Dispatch, ObserversSeeOperationsAfterTheyRan) {
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

TEST(Dispatch, ObserversMayEndInAnyOrder) {
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

TEST(Dispatch, ObserversBelongToTheirThread) {
  OpLog log;
  const ObserverScope scope(log);
  const Tensor x = Tensor::ones({2});
  Executor::system().start("other", [&x] { negate(x); })->join();
  EXPECT_TRUE(log.ops.empty());
}

TEST(Dispatch, ObserversSeeOperationsOnEmptyTensors) {
  OpLog log;
  const ObserverScope scope(log);
  negate(Tensor::zeros({0, 3}));
  EXPECT_EQ(log.ops.size(), 1u);
}

TEST(Dispatch, RefusesInputsOnSeveralDevices) {
  const Tensor here = Tensor::ones({2});
  const Tensor there = here.to({DeviceType::kCpu, 1});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at dispatch_test.cc:", __LINE__ + 1), "cpu:0", "cpu:1", "try to()"},
               [&] { here + there; });
  EXPECT_EQ((there + there).device(), there.device());
  EXPECT_EQ((there * 2).device(), there.device());  // plain numbers follow
}

TEST(Dispatch, NamesOperationTypeAndDeviceWithoutKernel) {
  OpCall call;
  call.op = OpId::kExp;
  call.where = SourceLocation::current();
  call.inputs = {Tensor::zeros({2}, DType::kBool)};
  call.outputs = {{{2}, DType::kBool}};
  EXPECT_ERROR(dispatch(call), kUnimplemented, "exp at dispatch_test.cc", "bool", "cpu:0");
}

TEST(Dispatch, ResultsOfViewsShareStorageUnderANewIdentity) {
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

TEST(KernelTable, FindsWhatWasSet) {
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

}  // namespace
}  // namespace tutti
