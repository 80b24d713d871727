// Tests validation of calls from other processes: the table's calls pass, invalid ones are refused.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/op_call_check.h"

#include "tests/support/op_table.h"
#include "tests/support/thrown.h"
#include "tutti/core/error.h"

namespace tutti {
namespace op_call_check_test {

using testing::OpCase;
using testing::OpFamily;

class OpCallCheck : public testing::OpTableTest {};

TEST_P(OpCallCheck, TakesTheTableAndRefusesOtherOutputs) {
  for (const OpCase& c : GetParam().cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_NO_THROW(internal::check_call(c.call));
    for (std::size_t i = 0; i < c.call.outputs.size(); ++i) {
      OpCall call = c.call;
      call.outputs[i].dtype =
          call.outputs[i].dtype == DType::kUInt8 ? DType::kInt64 : DType::kUInt8;
      if (call.op == OpId::kOneHot) continue;  // its result may have any type
      EXPECT_THROW(internal::check_call(call), Error);
    }
    OpCall call = c.call;
    call.outputs[0].shape = Shape{7, 5, 3, 2, 1, 1, 13};
    if (call.op == OpId::kBroadcastTo) call.inputs[0] = Tensor::zeros({17}, call.outputs[0].dtype);
    EXPECT_THROW(internal::check_call(call), Error);
    call = c.call;
    call.outputs.push_back(call.outputs[0]);
    EXPECT_THROW(internal::check_call(call), Error);
  }
}

/// Each change of one input's shape is detected, unless the shape broadcasts.
TEST_P(OpCallCheck, RefusesOtherInputs) {
  for (const OpCase& c : GetParam().cases()) {
    SCOPED_TRACE(c.name());
    for (std::size_t i = 0; i < c.call.inputs.size(); ++i) {
      OpCall call = c.call;
      call.inputs[i] = Tensor::zeros({3, 1, 5, 7, 1, 23}, call.inputs[i].dtype());
      EXPECT_THROW(internal::check_call(call), Error) << "input " << i;
    }
    OpCall call = c.call;
    call.inputs.clear();
    EXPECT_THROW(internal::check_call(call), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, OpCallCheck, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

OpCall call_of(OpId op, std::vector<Tensor> inputs, std::vector<TensorSpec> outputs,
               Attributes attributes) {
  return {op, std::move(inputs), std::move(outputs), std::move(attributes), SourceLocation()};
}

TEST(OpCallCheck, RefusesAttributesThatLeaveTheInputs) {
  const Tensor x = Tensor::zeros({4, 6}), image = Tensor::zeros({1, 5, 5, 2});
  const auto refused = [](const OpCall& call, const std::string& part) {
    EXPECT_ERROR(internal::check_call(call), kInvalidArgument, part);
  };
  SliceAttributes slice;
  slice.begin = {3, 0};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice), "parts within");
  slice.begin = {-1, 0};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice), "parts within");
  slice.begin = {0, 0, 9};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice), "axes that are not");
  PadAttributes pad;
  pad.before = {5, 0};
  refused(call_of(OpId::kPad, {x}, {{{8, 6}, DType::kFloat32}}, pad), "parts within");
  TransposeAttributes transpose;
  transpose.permutation = {1, 1};
  refused(call_of(OpId::kTranspose, {x}, {{{6, 6}, DType::kFloat32}}, transpose), "permutation");
  refused(call_of(OpId::kArgMax, {x}, {{{4}, DType::kInt64}}, AxisAttributes{2}), "an axis");
  refused(call_of(OpId::kConcat, {x}, {{{4, 6}, DType::kFloat32}}, AxisAttributes{-1}), "an axis");
  refused(call_of(OpId::kReduceSum, {x}, {{{4}, DType::kFloat32}}, AxesAttributes{6}), "axes");
  refused(call_of(OpId::kReduceSum, {x}, {{{4}, DType::kFloat32}}, {}), "other attributes");
  const Tensor filter = Tensor::zeros({3, 3, 2, 4});
  Conv2dAttributes conv;
  conv.stride_h = 0;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 3, 3, 4}, DType::kFloat32}}, conv),
          "sizes of 1");
  conv = {};
  conv.pad_top = std::int64_t{1} << 40;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 3, 3, 4}, DType::kFloat32}}, conv),
          "sizes of 0");
  conv = {};
  conv.dilation_h = 4;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 1, 3, 4}, DType::kFloat32}}, conv),
          "window within");
  Pool2dAttributes pool;
  pool.window_h = 9;
  refused(call_of(OpId::kMaxPool, {image}, {{{1, 1, 2, 2}, DType::kFloat32}}, pool),
          "window within");
}

}  // namespace op_call_check_test
}  // namespace tutti
