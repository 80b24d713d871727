// The table: which function is the gradient of which operation, and what it needs to keep.
// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradients.h"

#include <array>

#include "tutti/core/error.h"

namespace tutti::internal {

const Tensor& GradientContext::in(std::size_t i) const {
  TUTTI_CHECK(i < call.inputs.size() && call.inputs[i].defined(), "gradient of ",
              to_string(call.op), ": input ", i, " was not kept");
  return call.inputs[i];
}

const Tensor& GradientContext::out(std::size_t i) const {
  TUTTI_CHECK(i < outputs.size() && outputs[i].defined(), "gradient of ", to_string(call.op),
              ": output ", i, " was not kept");
  return outputs[i];
}

namespace {

using Table = std::array<OpGradient, static_cast<std::size_t>(OpId::kCount)>;

/// Their results are piecewise constant or not floating: they pass no gradient.
constexpr OpId kConstantOps[] = {
    OpId::kSign,        OpId::kFloor,      OpId::kCeil,      OpId::kRound,
    OpId::kFloorDivide, OpId::kLogicalNot, OpId::kEqual,     OpId::kNotEqual,
    OpId::kLess,        OpId::kLessEqual,  OpId::kGreater,   OpId::kGreaterEqual,
    OpId::kLogicalAnd,  OpId::kLogicalOr,  OpId::kReduceAny, OpId::kReduceAll,
    OpId::kArgMax,      OpId::kArgMin,     OpId::kOneHot,    OpId::kStopGradient};

Table all_gradients() {
  Table table;
  for (const OpId op : kConstantOps) table[static_cast<std::size_t>(op)].is_constant = true;
  for (const auto topic : {elementwise_gradients(), linear_gradients(), normalization_gradients(),
                           reduction_gradients(), shape_gradients()}) {
    for (const OpGradient& each : topic) table[static_cast<std::size_t>(each.op)] = each;
  }
  return table;
}

const OpGradient& entry_of(OpId op) {
  static const Table table = all_gradients();
  return table[static_cast<std::size_t>(op)];
}

/// Of products and convolutions the result is needed for a fused activation alone.
bool is_without_activation(const OpCall& call) {
  if (call.op == OpId::kMatMul) {
    return call.attributes_as<MatMulAttributes>().activation == FusedActivation::kNone;
  }
  return call.op == OpId::kConv2d &&
         call.attributes_as<Conv2dAttributes>().activation == FusedActivation::kNone;
}

}  // namespace

GradientFunction find_gradient(OpId op) { return entry_of(op).function; }

bool is_constant_for_gradients(OpId op) { return entry_of(op).is_constant; }

std::uint32_t used_inputs(const OpCall& call) { return entry_of(call.op).inputs; }

std::uint32_t used_outputs(const OpCall& call) {
  return is_without_activation(call) ? kNoTensor : entry_of(call.op).outputs;
}

}  // namespace tutti::internal
