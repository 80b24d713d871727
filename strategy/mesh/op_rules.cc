// Table of the sharding rules for operations on sharded tensors.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/op_rules.h"

#include <algorithm>

namespace tutti::internal {
namespace {

constexpr std::int8_t kWhole = FactorsOfTensor::kWhole;

std::int8_t factor(int number) { return static_cast<std::int8_t>(number); }

const Shape& input(const OpCall& call, std::size_t index) { return call.inputs[index].shape(); }

/// Returns a rule in which no dimension has a factor yet.
OpRule rule_for(const OpCall& call, int num_factors, Linearity linearity = Linearity::kNone) {
  OpRule rule;
  rule.inputs.resize(call.inputs.size());
  rule.outputs.resize(call.outputs.size());
  rule.num_factors = num_factors;
  rule.linearity = linearity;
  return rule;
}

/// Returns a rule with one factor per dimension of the output; inputs are broadcast to the output's
/// shape.
OpRule elementwise(const OpCall& call, Linearity linearity = Linearity::kNone) {
  const Shape& out = call.outputs[0].shape;
  OpRule rule = rule_for(call, out.rank(), linearity);
  for (int d = 0; d < out.rank(); ++d) rule.outputs[0][d] = factor(d);
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Shape& in = input(call, i);
    const int added = out.rank() - in.rank();
    for (int d = 0; d < in.rank(); ++d) {
      if (in.dim(d) == out.dim(added + d)) rule.inputs[i][d] = factor(added + d);
    }
  }
  return rule;
}

/// Returns a rule with one factor per dimension, except for the last `num_last` dimensions and
/// those whose bit is set in `whole`. All tensors share the leading dimensions; some may lack the
/// last `num_last`.
OpRule by_dimension(const OpCall& call, int num_last, std::uint32_t whole = 0,
                    Linearity linearity = Linearity::kNone) {
  const int rank = input(call, 0).rank();
  OpRule rule = rule_for(call, rank, linearity);
  const auto set = [&](FactorsOfTensor& tensor, int dims) {
    for (int d = 0; d < std::min(dims, rank - num_last); ++d) {
      if ((whole >> d & 1) == 0) tensor[d] = factor(d);
    }
  };
  for (std::size_t i = 0; i < rule.inputs.size(); ++i) set(rule.inputs[i], input(call, i).rank());
  for (std::size_t i = 0; i < rule.outputs.size(); ++i) {
    set(rule.outputs[i], call.outputs[i].shape.rank());
  }
  return rule;
}

/// Returns a bit mask of the dimensions in which input and output differ.
std::uint32_t changed_dimensions(const OpCall& call) {
  std::uint32_t changed = 0;
  for (int d = 0; d < input(call, 0).rank(); ++d) {
    if (input(call, 0).dim(d) != call.outputs[0].shape.dim(d)) changed |= 1u << d;
  }
  return changed;
}

OpRule reduction(const OpCall& call) {
  const auto& attributes = call.attributes_as<AxesAttributes>();
  const int rank = input(call, 0).rank();
  OpRule rule = rule_for(call, rank);
  int out = 0;
  for (int d = 0; d < rank; ++d) {
    rule.inputs[0][d] = factor(d);
    const bool is_reduced = (attributes.axes >> d & 1) != 0;
    if (!is_reduced) rule.outputs[0][out] = factor(d);
    if (!is_reduced || attributes.keep_dims) ++out;
  }
  switch (call.op) {
    case OpId::kReduceSum:
    case OpId::kReduceMean:
      rule.linearity = Linearity::kTogether;
      break;
    case OpId::kReduceMax:
    case OpId::kReduceAny:
      rule.combination = ReduceOp::kMax;
      break;
    case OpId::kReduceMin:
    case OpId::kReduceAll:
      rule.combination = ReduceOp::kMin;
      break;
    default:
      rule.combination = ReduceOp::kProduct;
  }
  return rule;
}

OpRule without_axis(const OpCall& call, int axis) {
  const int rank = input(call, 0).rank();
  OpRule rule = rule_for(call, rank);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) continue;
    rule.inputs[0][d] = factor(d);
    rule.outputs[0][d - (d > axis ? 1 : 0)] = factor(d);
  }
  return rule;
}

/// Returns the rule for the product of matrices [..., m, k] and [..., k, n], plus a bias [n]. Its
/// factors are m, n, k and the leading dimensions.
OpRule matrix_product(const OpCall& call) {
  const auto& attributes = call.attributes_as<MatMulAttributes>();
  constexpr std::int8_t kM = 0, kN = 1, kK = 2, kFirstBatch = 3;
  const int rank = std::max(input(call, 0).rank(), input(call, 1).rank());
  OpRule rule = rule_for(call, kFirstBatch + rank - 2);
  const auto set = [&](FactorsOfTensor& tensor, int own_rank, std::int8_t row, std::int8_t column) {
    for (int d = 0; d < own_rank - 2; ++d) tensor[d] = factor(kFirstBatch + rank - own_rank + d);
    tensor[own_rank - 2] = row;
    tensor[own_rank - 1] = column;
  };
  const bool ta = attributes.transpose_a, tb = attributes.transpose_b;
  set(rule.inputs[0], input(call, 0).rank(), ta ? kK : kM, ta ? kM : kK);
  set(rule.inputs[1], input(call, 1).rank(), tb ? kN : kK, tb ? kK : kN);
  set(rule.outputs[0], call.outputs[0].shape.rank(), kM, kN);
  if (call.inputs.size() == 3) rule.inputs[2][0] = kN;
  return rule;
}

/// Returns a rule with a factor for images and, unless channels form groups, factors for output and
/// input channels.
OpRule convolution(const OpCall& call) {
  constexpr std::int8_t kImage = 0, kOut = 1, kIn = 2;
  const bool has_groups = call.attributes_as<Conv2dAttributes>().groups > 1;
  OpRule rule = rule_for(call, 3);
  const auto image = [&](FactorsOfTensor& tensor, std::int8_t channels) {
    tensor[0] = kImage;
    tensor[3] = has_groups ? kWhole : channels;
  };
  const auto filter = [&](FactorsOfTensor& tensor) {
    tensor[2] = has_groups ? kWhole : kIn;
    tensor[3] = has_groups ? kWhole : kOut;
  };
  switch (call.op) {
    case OpId::kConv2d:
      image(rule.inputs[0], kIn), filter(rule.inputs[1]), image(rule.outputs[0], kOut);
      if (call.inputs.size() == 3 && !has_groups) rule.inputs[2][0] = kOut;
      break;
    case OpId::kConv2dBackwardInput:
      image(rule.inputs[0], kOut), filter(rule.inputs[1]), image(rule.outputs[0], kIn);
      break;
    default:
      image(rule.inputs[0], kIn), image(rule.inputs[1], kOut), filter(rule.outputs[0]);
  }
  return rule;
}

/// Returns a rule with factors for batch and channels. Image dimensions are not sharded, because a
/// window may extend into the next shard.
OpRule pooling(const OpCall& call) {
  constexpr std::uint32_t kPositions = 0b110;
  return by_dimension(call, 0, kPositions);
}

/// Returns the rule for normalizing x [..., channels] with parameters [channels].
OpRule normalization_of_channels(const OpCall& call) {
  const int rank = input(call, 0).rank();
  OpRule rule = by_dimension(call, 0);
  for (std::size_t i = 1; i < rule.inputs.size(); ++i) {
    rule.inputs[i] = {};
    rule.inputs[i][0] = factor(rank - 1);
  }
  return rule;
}

/// Returns a rule that shards x along its leading dimensions, which the statistics [..., groups]
/// share.
OpRule group_normalization(const OpCall& call) {
  const bool is_gradient = call.op == OpId::kGroupNormGrad;
  const int num_rows = (is_gradient ? input(call, 2) : call.outputs[1].shape).rank() - 1;
  OpRule rule = rule_for(call, num_rows);
  for (int d = 0; d < num_rows; ++d) {
    rule.inputs[0][d] = rule.outputs[0][d] = factor(d);
    if (is_gradient) {  // (x, gamma, mean, variance, dy) -> (dx, dgamma, dbeta)
      for (const std::size_t i : {2, 3, 4}) rule.inputs[i][d] = factor(d);
    } else {  // (x, gamma, beta) -> (y, mean, variance)
      for (const std::size_t i : {1, 2}) rule.outputs[i][d] = factor(d);
    }
  }
  return rule;
}

/// Returns a rule with factors for batch and heads. If several query heads share a key head, query
/// heads and key heads are divided into the same number of shards.
OpRule attention(const OpCall& call) {
  OpRule rule = rule_for(call, 2);
  for (auto* tensors : {&rule.inputs, &rule.outputs}) {
    for (FactorsOfTensor& tensor : *tensors) tensor[0] = 0, tensor[1] = 1;
  }
  return rule;
}

/// Returns a rule that can shard all dimensions except classes. Tensors are labels [...], logits
/// [..., classes] and gradients of losses [...].
OpRule loss_of_rows(const OpCall& call) {
  const int rank = input(call, 1).rank() - 1;
  OpRule rule = rule_for(call, rank);
  for (auto* tensors : {&rule.inputs, &rule.outputs}) {
    for (FactorsOfTensor& tensor : *tensors) {
      for (int d = 0; d < rank; ++d) tensor[d] = factor(d);
    }
  }
  return rule;
}

/// Returns a rule in which only the first of several merged or split dimensions has a factor.
OpRule reshaping(const OpCall& call) {
  const Shape& from = input(call, 0);
  const Shape& to = call.outputs[0].shape;
  OpRule rule = rule_for(call, from.rank(), Linearity::kTogether);
  if (from.num_elements() == 0) return rule;
  int f = 0, t = 0;
  while (f < from.rank() && t < to.rank()) {
    if (from.dim(f) == 1) {
      ++f;
      continue;
    }
    if (to.dim(t) == 1) {
      ++t;
      continue;
    }
    rule.inputs[0][f] = factor(f);
    rule.outputs[0][t] = factor(f);
    std::int64_t before = from.dim(f++), after = to.dim(t++);
    while (before != after) {
      if (before < after) {
        before *= from.dim(f++);
      } else {
        after *= to.dim(t++);
      }
    }
  }
  return rule;
}

OpRule transposition(const OpCall& call) {
  const auto& permutation = call.attributes_as<TransposeAttributes>().permutation;
  const int rank = input(call, 0).rank();
  OpRule rule = rule_for(call, rank, Linearity::kTogether);
  for (int d = 0; d < rank; ++d) {
    rule.inputs[0][d] = factor(d);
    rule.outputs[0][d] = factor(permutation[static_cast<std::size_t>(d)]);
  }
  return rule;
}

/// Returns the sharding rule of an operation that maps params [rows, ...] and indices to
/// [indices..., ...].
OpRule lookup(const OpCall& call) {
  const int num_indices = input(call, 1).rank(), rank = input(call, 0).rank();
  OpRule rule = rule_for(call, num_indices + rank - 1, Linearity::kFirst);
  for (int d = 0; d < num_indices; ++d) rule.inputs[1][d] = rule.outputs[0][d] = factor(d);
  for (int d = 1; d < rank; ++d) {
    rule.inputs[0][d] = rule.outputs[0][num_indices + d - 1] = factor(num_indices + d - 1);
  }
  return rule;
}

/// Returns the rule for scatter operations: values [n, ...] and indices [n] -> [rows, ...]. If n is
/// sharded, the positions' outputs are added.
OpRule scattering(const OpCall& call) {
  const int rank = input(call, 0).rank();
  OpRule rule = rule_for(call, rank, Linearity::kFirst);
  rule.inputs[0][0] = rule.inputs[1][0] = 0;
  for (int d = 1; d < rank; ++d) rule.inputs[0][d] = rule.outputs[0][d] = factor(d);
  return rule;
}

}  // namespace

std::optional<OpRule> rule_of(const OpCall& call) {
  switch (call.op) {
    case OpId::kNegate:
    case OpId::kStopGradient:
    case OpId::kBroadcastTo:
    case OpId::kAdd:
    case OpId::kSubtract:
      return elementwise(call, Linearity::kTogether);
    case OpId::kMultiply:
      return elementwise(call, Linearity::kEach);
    case OpId::kDivide:
      return elementwise(call, Linearity::kFirst);
    case OpId::kReduceSum:
    case OpId::kReduceMean:
    case OpId::kReduceMax:
    case OpId::kReduceMin:
    case OpId::kReduceProduct:
    case OpId::kReduceAny:
    case OpId::kReduceAll:
      return reduction(call);
    case OpId::kArgMax:
    case OpId::kArgMin:
      return without_axis(call, call.attributes_as<AxisAttributes>().axis);
    case OpId::kMatMul:
      return matrix_product(call);
    case OpId::kConv2d:
    case OpId::kConv2dBackwardInput:
    case OpId::kConv2dBackwardFilter:
      return convolution(call);
    case OpId::kBiasGrad: {
      OpRule rule = by_dimension(call, 0);
      rule.outputs[0] = {};
      rule.outputs[0][0] = factor(input(call, 0).rank() - 1);
      return rule;
    }
    case OpId::kMaxPool:
    case OpId::kMaxPoolGrad:
    case OpId::kAveragePool:
    case OpId::kAveragePoolGrad:
    case OpId::kUpsample:
    case OpId::kUpsampleGrad:
      return pooling(call);
    case OpId::kBatchNormInference:
      return normalization_of_channels(call);
    case OpId::kGroupNorm:
    case OpId::kGroupNormGrad:
      return group_normalization(call);
    case OpId::kLrn:
    case OpId::kLrnGrad:
    case OpId::kSoftmax:
    case OpId::kLogSoftmax:
    case OpId::kSoftmaxGrad:
    case OpId::kLogSoftmaxGrad:
    case OpId::kTopK:
      return by_dimension(call, 1);
    case OpId::kSoftmaxCrossEntropy:
    case OpId::kSparseSoftmaxCrossEntropy:
    case OpId::kSparseSoftmaxCrossEntropyGrad:
      return loss_of_rows(call);
    case OpId::kAttention:
    case OpId::kAttentionGrad:
      return attention(call);
    case OpId::kReshape:
      return reshaping(call);
    case OpId::kTranspose:
      return transposition(call);
    case OpId::kSlice:
      return by_dimension(call, 0, changed_dimensions(call), Linearity::kTogether);
    case OpId::kPad:
      return by_dimension(call, 0, changed_dimensions(call),
                          call.attributes_as<PadAttributes>().value == 0.0 ? Linearity::kTogether
                                                                           : Linearity::kNone);
    case OpId::kConcat:
      return by_dimension(call, 0, 1u << call.attributes_as<AxisAttributes>().axis,
                          Linearity::kTogether);
    case OpId::kReverse:
      return by_dimension(call, 0, call.attributes_as<AxesAttributes>().axes, Linearity::kTogether);
    case OpId::kCumulativeSum:
      return by_dimension(call, 0, 1u << call.attributes_as<CumulativeSumAttributes>().axis,
                          Linearity::kTogether);
    case OpId::kOneHot:
      return by_dimension(call, 0);
    case OpId::kGather:
      return lookup(call);
    case OpId::kScatterRows:
      return scattering(call);
    case OpId::kBatchNormTraining:
    case OpId::kBatchNormGrad:
    case OpId::kDropout:
    case OpId::kCount:
      return std::nullopt;
    default:
      return elementwise(call);
  }
}

}  // namespace tutti::internal
