// The table: which function is the gradient of which operation, and what it needs to keep.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_functions.h"

#include "tutti/autograd/gradients.h"
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

GradientFunction find_gradient(OpId op) {
  switch (op) {
    case OpId::kNegate:
      return negate_gradient;
    case OpId::kExp:
      return exp_gradient;
    case OpId::kLog:
      return log_gradient;
    case OpId::kSqrt:
      return sqrt_gradient;
    case OpId::kRsqrt:
      return rsqrt_gradient;
    case OpId::kSquare:
      return square_gradient;
    case OpId::kAbs:
      return abs_gradient;
    case OpId::kReciprocal:
      return reciprocal_gradient;
    case OpId::kErf:
      return erf_gradient;
    case OpId::kLog1p:
      return log1p_gradient;
    case OpId::kExpm1:
      return expm1_gradient;
    case OpId::kSin:
      return sin_gradient;
    case OpId::kCos:
      return cos_gradient;
    case OpId::kCast:
      return cast_gradient;
    case OpId::kClip:
      return clip_gradient;
    case OpId::kAdd:
      return add_gradient;
    case OpId::kSubtract:
      return subtract_gradient;
    case OpId::kMultiply:
      return multiply_gradient;
    case OpId::kDivide:
      return divide_gradient;
    case OpId::kMaximum:
      return maximum_gradient;
    case OpId::kMinimum:
      return minimum_gradient;
    case OpId::kPower:
      return power_gradient;
    case OpId::kWhere:
      return where_gradient;
    case OpId::kDropout:
      return dropout_gradient;

    case OpId::kRelu:
      return relu_gradient;
    case OpId::kAddRelu:
      return add_relu_gradient;
    case OpId::kSigmoid:
      return sigmoid_gradient;
    case OpId::kTanh:
      return tanh_gradient;
    case OpId::kSoftplus:
      return softplus_gradient;
    case OpId::kElu:
      return elu_gradient;
    case OpId::kGelu:
      return gelu_gradient;
    case OpId::kReluGrad:
      return relu_grad_gradient;
    case OpId::kSigmoidGrad:
      return sigmoid_grad_gradient;
    case OpId::kTanhGrad:
      return tanh_grad_gradient;
    case OpId::kEluGrad:
      return elu_grad_gradient;
    case OpId::kGeluGrad:
      return gelu_grad_gradient;

    case OpId::kReduceSum:
      return reduce_sum_gradient;
    case OpId::kReduceMean:
      return reduce_mean_gradient;
    case OpId::kReduceMax:
    case OpId::kReduceMin:
      return reduce_extreme_gradient;
    case OpId::kReduceProduct:
      return reduce_product_gradient;

    case OpId::kMatMul:
      return matmul_gradient;
    case OpId::kConv2d:
      return conv2d_gradient;
    case OpId::kConv2dBackwardInput:
      return conv2d_backward_input_gradient;
    case OpId::kConv2dBackwardFilter:
      return conv2d_backward_filter_gradient;
    case OpId::kBiasGrad:
      return bias_grad_gradient;
    case OpId::kMaxPool:
      return max_pool_gradient;
    case OpId::kAveragePool:
      return average_pool_gradient;
    case OpId::kAveragePoolGrad:
      return average_pool_grad_gradient;
    case OpId::kBatchNormTraining:
      return batch_norm_training_gradient;
    case OpId::kBatchNormInference:
      return batch_norm_inference_gradient;
    case OpId::kLrn:
      return lrn_gradient;
    case OpId::kGroupNorm:
      return group_norm_gradient;

    case OpId::kSoftmax:
      return softmax_gradient;
    case OpId::kLogSoftmax:
      return log_softmax_gradient;
    case OpId::kSoftmaxGrad:
      return softmax_grad_gradient;
    case OpId::kLogSoftmaxGrad:
      return log_softmax_grad_gradient;
    case OpId::kSoftmaxCrossEntropy:
      return softmax_cross_entropy_gradient;
    case OpId::kSparseSoftmaxCrossEntropy:
      return sparse_softmax_cross_entropy_gradient;
    case OpId::kSparseSoftmaxCrossEntropyGrad:
      return sparse_softmax_cross_entropy_grad_gradient;
    case OpId::kSigmoidCrossEntropy:
      return sigmoid_cross_entropy_gradient;

    case OpId::kReshape:
      return reshape_gradient;
    case OpId::kTranspose:
      return transpose_gradient;
    case OpId::kSlice:
      return slice_gradient;
    case OpId::kPad:
      return pad_gradient;
    case OpId::kConcat:
      return concat_gradient;
    case OpId::kBroadcastTo:
      return broadcast_to_gradient;
    case OpId::kGather:
      return gather_gradient;
    case OpId::kScatterRows:
      return scatter_rows_gradient;
    case OpId::kReverse:
      return reverse_gradient;
    case OpId::kCumulativeSum:
      return cumulative_sum_gradient;
    case OpId::kTopK:
      return top_k_gradient;
    case OpId::kUpsample:
      return upsample_gradient;
    case OpId::kUpsampleGrad:
      return upsample_grad_gradient;
    default:
      return nullptr;
  }
}

bool is_constant_for_gradients(OpId op) {
  switch (op) {
    case OpId::kSign:
    case OpId::kFloor:
    case OpId::kCeil:
    case OpId::kRound:
    case OpId::kLogicalNot:
    case OpId::kEqual:
    case OpId::kNotEqual:
    case OpId::kLess:
    case OpId::kLessEqual:
    case OpId::kGreater:
    case OpId::kGreaterEqual:
    case OpId::kLogicalAnd:
    case OpId::kLogicalOr:
    case OpId::kReduceAny:
    case OpId::kReduceAll:
    case OpId::kArgMax:
    case OpId::kArgMin:
    case OpId::kOneHot:
    case OpId::kStopGradient:
      return true;
    default:
      return false;
  }
}

std::uint32_t used_inputs(const OpCall& call) {
  constexpr std::uint32_t kNone = 0, kFirst = 0b1, kSecond = 0b10, kAll = ~0u;
  switch (call.op) {
    case OpId::kNegate:
    case OpId::kExp:
    case OpId::kSqrt:
    case OpId::kRsqrt:
    case OpId::kReciprocal:
    case OpId::kCast:
    case OpId::kRelu:
    case OpId::kAddRelu:
    case OpId::kSigmoid:
    case OpId::kTanh:
    case OpId::kElu:
    case OpId::kAdd:
    case OpId::kSubtract:
    case OpId::kReduceSum:
    case OpId::kReduceMean:
    case OpId::kBiasGrad:
    case OpId::kAveragePool:
    case OpId::kAveragePoolGrad:
    case OpId::kSoftmax:
    case OpId::kLogSoftmax:
    case OpId::kReshape:
    case OpId::kTranspose:
    case OpId::kSlice:
    case OpId::kPad:
    case OpId::kConcat:
    case OpId::kBroadcastTo:
    case OpId::kDropout:
    case OpId::kExpm1:
    case OpId::kReverse:
    case OpId::kCumulativeSum:
    case OpId::kTopK:
    case OpId::kUpsample:
    case OpId::kUpsampleGrad:
      return kNone;
    case OpId::kReluGrad:
    case OpId::kGather:
    case OpId::kScatterRows:
      return kSecond;
    case OpId::kWhere:
      return kFirst;
    case OpId::kMatMul:
    case OpId::kConv2d:
    case OpId::kBatchNormTraining:
    case OpId::kGroupNorm:
      return kFirst | kSecond;  // not the bias, not beta
    default:
      return find_gradient(call.op) ? kAll : kNone;
  }
}

std::uint32_t used_outputs(const OpCall& call) {
  constexpr std::uint32_t kNone = 0, kFirst = 0b1, kSecond = 0b10, kStatistics = 0b110;
  switch (call.op) {
    case OpId::kExp:
    case OpId::kExpm1:
    case OpId::kSqrt:
    case OpId::kRsqrt:
    case OpId::kReciprocal:
    case OpId::kRelu:
    case OpId::kAddRelu:
    case OpId::kSigmoid:
    case OpId::kTanh:
    case OpId::kElu:
    case OpId::kPower:
    case OpId::kReduceMax:
    case OpId::kReduceMin:
    case OpId::kSoftmax:
    case OpId::kLogSoftmax:
      return kFirst;
    case OpId::kMatMul:
      return call.attributes_as<MatMulAttributes>().activation == FusedActivation::kNone ? kNone
                                                                                         : kFirst;
    case OpId::kConv2d:
      return call.attributes_as<Conv2dAttributes>().activation == FusedActivation::kNone ? kNone
                                                                                         : kFirst;
    case OpId::kBatchNormTraining:
    case OpId::kGroupNorm:
      return kStatistics;
    case OpId::kTopK:
      return kSecond;
    default:
      return kNone;
  }
}

}  // namespace tutti::internal
