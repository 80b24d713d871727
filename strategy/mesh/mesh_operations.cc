// Implements operations on sharded tensors: by rule, as several operations, or on whole inputs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/call_site.h"
#include "strategy/mesh/mesh_explanation.h"
#include "strategy/mesh/mesh_position.h"
#include "tensor/kernel_table.h"
#include "tensor/op_checks.h"
#include "tensor/tensor_impl.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

Tensor MeshPosition::relayout(const Tensor& value, const Sharding& sharding) {
  require_global("relayout");
  wanted_ = sharding;
  return dispatch_one(
      {OpId::kReshape, {value}, {{value.shape(), value.dtype()}}, {}, CallSite::current()});
}

std::optional<std::vector<Tensor>> MeshPosition::run(const OpCall& call) {
  if (const auto wanted = std::exchange(wanted_, std::nullopt)) {
    const ShardedTensor value = part_of(call.inputs[0]);
    // The result of every operation needs a new tensor id.
    return std::vector{tensor_of({*wanted, local_as(value, *wanted), value.spec}).alias()};
  }
  if (grid_.num_positions() == 1) return std::nullopt;
  bool any_sharded = false, any_moved = false;
  std::vector<ShardedTensor> inputs;
  inputs.reserve(call.inputs.size());
  for (const Tensor& input : call.inputs) {
    inputs.push_back(part_of(input));
    any_sharded = any_sharded || !inputs.back().sharding.is_whole();
    // If a partial value was summed, the sum is on the device, not in the tensor's memory.
    any_moved = any_moved || inputs.back().value || input.device() != device();
  }
  if (!any_sharded && !any_moved) return std::nullopt;
  if (any_sharded) require_global(to_string(call.op));
  const CallSite site(call.where);
  // Tapes record the operation on global tensors, not the local operations that carry it out.
  const SeparateObservers unobserved;
  if (!any_sharded) {
    OpCall own = call;
    for (std::size_t i = 0; i < inputs.size(); ++i) own.inputs[i] = inputs[i].local;
    return run_on_parts(std::move(own));
  }
  if (auto outputs = run_composed(call, inputs)) return outputs;
  const std::optional<OpRule> rule = rule_of(call);
  return rule ? run_by_rule(call, *rule, inputs) : run_whole(call, inputs);
}

std::vector<Tensor> MeshPosition::run_on_parts(OpCall call) const {
  const OpPartitionerScope none(nullptr);
  const SeparateObservers unobserved;
  const DeviceScope here(device());
  return dispatch(std::move(call));
}

std::vector<Tensor> MeshPosition::resharded(const OpCall& call,
                                            std::span<const ShardedTensor> inputs,
                                            std::span<const Sharding> wanted) {
  MeshExplanation* const explanation = MeshExplanation::current();
  const std::uint64_t before = explanation ? explanation->bytes_gathered() : 0;
  std::vector<Tensor> locals;
  for (std::size_t i = 0; i < inputs.size(); ++i) locals.push_back(local_as(inputs[i], wanted[i]));
  if (explanation) explanation->note_gathered(call, explanation->bytes_gathered() - before);
  return locals;
}

std::vector<Tensor> MeshPosition::run_whole(const OpCall& call,
                                            std::span<const ShardedTensor> inputs) {
  std::uint64_t missing = 0;
  for (const ShardedTensor& input : inputs) {
    if (input.sharding.is_whole()) continue;
    missing += num_bytes(input.spec.shape, input.spec.dtype) - input.local.num_bytes();
  }
  log_warning_once(concat("mesh: ", who(call.op, call.where),
                          " has no rule for sharded inputs: ", "each position gathers ", missing,
                          " bytes and computes the full result"));
  OpCall whole = call;
  whole.inputs = resharded(call, inputs, std::vector<Sharding>(inputs.size()));
  return run_on_parts(std::move(whole));
}

/// Axes over which the factors of an operation are split.
struct MeshPosition::Assignment {
  std::vector<AxisSet> of_factor;
  AxisSet partial = 0;  // axes over which inputs stay partial
  std::vector<bool> is_partial;

  Sharding sharding(const FactorsOfTensor& factors, int rank) const {
    Sharding result;
    for (int d = 0; d < rank; ++d) {
      if (factors[d] >= 0) result[d] = of_factor[static_cast<std::size_t>(factors[d])];
    }
    return result;
  }
};

namespace {

/// Returns the axes over which inputs may stay partial, and marks these inputs. Returns no axes if
/// the operation is not linear in them.
AxisSet kept_partial(Linearity linearity, std::span<const ShardedTensor> inputs,
                     std::vector<bool>& is_partial) {
  const auto of = [&](std::size_t i) { return inputs[i].sharding.partial; };
  const auto count = std::ranges::count_if(
      inputs, [](const ShardedTensor& each) { return each.sharding.partial != 0; });
  if (count == 0) return 0;
  AxisSet kept = 0;
  switch (linearity) {
    case Linearity::kNone:
      break;
    case Linearity::kTogether: {
      // An input that is not partial contributes an equal share at each position. Therefore the
      // gradients of several uses of a value are added first and exchanged once. Inputs that will
      // be broadcast are still small, so their partial sums are exchanged first.
      for (std::size_t i = 0; i < inputs.size(); ++i) kept |= of(i);
      const bool are_equal = std::ranges::all_of(
          inputs, [&](const ShardedTensor& each) { return each.sharding.partial == kept; });
      const bool may_mix = std::ranges::all_of(inputs, [&](const ShardedTensor& each) {
        return each.spec.shape == inputs[0].spec.shape;
      });
      if (!are_equal && !may_mix) return 0;
      is_partial.assign(inputs.size(), true);
      return kept;
    }
    case Linearity::kEach:
      for (std::size_t i = 0; count == 1 && i < inputs.size(); ++i) kept |= of(i);
      break;
    case Linearity::kFirst:
      if (count == 1) kept = of(0);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) is_partial[i] = kept != 0 && of(i) == kept;
  return kept;
}

}  // namespace

MeshPosition::Assignment MeshPosition::assign_axes(const OpCall& call, const OpRule& rule,
                                                   std::span<const ShardedTensor> inputs) const {
  Assignment result;
  result.of_factor.resize(static_cast<std::size_t>(rule.num_factors), 0);
  result.is_partial.resize(inputs.size(), false);
  // Large inputs take precedence, because moving them costs the most.
  std::vector<std::size_t> order(inputs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return inputs[i].spec.shape.num_elements(); });
  const auto fits = [&](std::int8_t factor, AxisSet axes) {
    const int parts = grid_.size(axes);
    const auto divides = [&](const FactorsOfTensor& factors, const Shape& shape) {
      for (int d = 0; d < shape.rank(); ++d) {
        if (factors[d] == factor && shape.dim(d) % parts != 0) return false;
      }
      return true;
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!divides(rule.inputs[i], inputs[i].spec.shape)) return false;
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (!divides(rule.outputs[i], call.outputs[i].shape)) return false;
    }
    return true;
  };
  AxisSet used = 0;
  for (const std::size_t i : order) {
    for (int d = 0; d < inputs[i].spec.shape.rank(); ++d) {
      const AxisSet axes = inputs[i].sharding[d];
      const std::int8_t factor = rule.inputs[i][d];
      if (axes == 0 || factor < 0 || (used & axes) != 0) continue;
      AxisSet& of_factor = result.of_factor[static_cast<std::size_t>(factor)];
      if (of_factor != 0 || !fits(factor, axes)) continue;
      of_factor = axes;
      used |= axes;
    }
  }
  result.partial = kept_partial(rule.linearity, inputs, result.is_partial);
  if ((result.partial & used) != 0) {
    result.partial = 0;
    result.is_partial.assign(inputs.size(), false);
  }
  return result;
}

namespace {

/// Returns the axes of the factors that occur in the inputs but not in the output.
AxisSet combined_axes(std::span<const AxisSet> of_factor, const FactorsOfTensor& output, int rank) {
  AxisSet axes = 0;
  for (std::size_t factor = 0; factor < of_factor.size(); ++factor) {
    bool has_factor = false;
    for (int d = 0; d < rank; ++d) has_factor |= output[d] == static_cast<std::int8_t>(factor);
    if (!has_factor) axes |= of_factor[factor];
  }
  return axes;
}

}  // namespace

std::vector<Tensor> MeshPosition::run_by_rule(const OpCall& call, const OpRule& rule,
                                              std::span<const ShardedTensor> inputs) {
  const Assignment assignment = assign_axes(call, rule, inputs);
  OpCall local{call.op, {}, {}, call.attributes, call.where};
  std::vector<Sharding> wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    wanted.push_back(assignment.sharding(rule.inputs[i], inputs[i].spec.shape.rank()));
    if (assignment.is_partial[i]) wanted.back().partial = assignment.partial;
  }
  local.inputs = resharded(call, inputs, wanted);
  std::vector<ShardedTensor> outputs;
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const TensorSpec& spec = call.outputs[i];
    const int rank = spec.shape.rank();
    ShardedTensor output{assignment.sharding(rule.outputs[i], rank), {}, spec};
    output.sharding.partial = static_cast<AxisSet>(
        assignment.partial | combined_axes(assignment.of_factor, rule.outputs[i], rank));
    local.outputs.push_back({grid_.local_shape(spec.shape, output.sharding), spec.dtype});
    outputs.push_back(std::move(output));
  }
  const AxisSet combined =
      outputs.front().sharding.partial & static_cast<AxisSet>(~assignment.partial);
  double scale = 1.0;
  if (call.op == OpId::kReduceMean && combined != 0) {
    // For a mean over sharded dimensions, the shards' sums are added, and the total is divided
    // once.
    local.op = OpId::kReduceSum;
    const double count = static_cast<double>(inputs[0].spec.shape.num_elements()) /
                         static_cast<double>(call.outputs[0].shape.num_elements());
    scale = 1.0 / count;
  }
  std::vector<Tensor> values = run_on_parts(std::move(local));
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].local = values[i];
    if (rule.combination != ReduceOp::kSum) {
      outputs[i].local = this->combined(rule.combination, values[i], combined);
      outputs[i].sharding.partial &= static_cast<AxisSet>(~combined);
    }
    results.push_back(tensor_of(outputs[i]));
  }
  if (scale != 1.0) results.front() = multiply(results.front(), scale);
  return results;
}

namespace {

/// Returns the axes of all dimensions but the last.
std::vector<int> all_but_last(const Tensor& x) {
  std::vector<int> axes(static_cast<std::size_t>(x.rank() - 1));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

/// Computes batch normalization with the statistics of the global batch.
std::vector<Tensor> batch_norm_of_parts(const OpCall& call) {
  const double epsilon = call.attributes_as<BatchNormAttributes>().epsilon;
  const DType wide = call.inputs[1].dtype();
  const Tensor x = cast(call.inputs[0], wide);
  const std::vector<int> axes = all_but_last(x);
  const Tensor mean = reduce_mean(x, {.axes = axes});
  const Tensor centred = x - mean;
  const Tensor variance = reduce_mean(square(centred), {.axes = axes});
  const Tensor y = centred * rsqrt(variance + epsilon) * call.inputs[1] + call.inputs[2];
  return {cast(y, call.inputs[0].dtype()), mean, variance};
}

/// Computes the gradients of batch normalization: (x, gamma, mean, variance, dy) -> (dx, dgamma,
/// dbeta).
std::vector<Tensor> batch_norm_grad_of_parts(const OpCall& call) {
  const double epsilon = call.attributes_as<BatchNormAttributes>().epsilon;
  const DType wide = call.inputs[1].dtype();
  const Tensor x = cast(call.inputs[0], wide), dy = cast(call.inputs[4], wide);
  const Tensor& gamma = call.inputs[1];
  const std::vector<int> axes = all_but_last(x);
  const auto count = static_cast<double>(x.num_elements() / x.shape().dim(-1));
  const Tensor scale = rsqrt(call.inputs[3] + epsilon);
  const Tensor normal = (x - call.inputs[2]) * scale;
  const Tensor dbeta = reduce_sum(dy, {.axes = axes});
  const Tensor dgamma = reduce_sum(dy * normal, {.axes = axes});
  const Tensor dx = (dy - dbeta / count - normal * (dgamma / count)) * (gamma * scale);
  return {cast(dx, call.inputs[0].dtype()), dgamma, dbeta};
}

/// Returns the log-sum-exp of each row: logits [..., classes] -> [..., 1].
Tensor log_sums(const Tensor& logits) {
  const Tensor largest = reduce_max(logits, {.axes = {-1}, .keep_dims = true});
  return log(reduce_sum(exp(logits - largest), {.axes = {-1}, .keep_dims = true})) + largest;
}

/// Computes the cross-entropy of logits whose classes are sharded. Exchanges only sums over
/// classes.
Tensor sparse_cross_entropy_of_parts(const OpCall& call, const Tensor& hits) {
  const Tensor& logits = call.inputs[1];
  const Tensor of_label = reduce_sum(logits * hits, {.axes = {-1}});
  return reshape(log_sums(logits), call.outputs[0].shape) - of_label;
}

Tensor sparse_cross_entropy_grad_of_parts(const OpCall& call, const Tensor& hits) {
  const Tensor& logits = call.inputs[1];
  return (exp(logits - log_sums(logits)) - hits) * expand_dims(call.inputs[2], -1);
}

Tensor activated(const Tensor& x, FusedActivation activation) {
  switch (activation) {
    case FusedActivation::kNone:
      return x;
    case FusedActivation::kRelu:
      return relu(x);
    case FusedActivation::kSigmoid:
      return sigmoid(x);
    case FusedActivation::kTanh:
      return tanh(x);
  }
  return x;
}

}  // namespace

Tensor MeshPosition::dropped_out(const OpCall& call, const ShardedTensor& x) {
  // Every position computes the full mask, whose element i uses random number i, so that the result
  // is bit-identical to that of one device.
  const Tensor ones = Tensor::ones(x.spec.shape, x.spec.dtype, device());
  const Tensor mask =
      run_on_parts({OpId::kDropout, {ones}, call.outputs, call.attributes, call.where}).front();
  return multiply(call.inputs[0], mask);
}

MeshPosition::OwnIndices MeshPosition::own_indices(const OpCall& call, const ShardedTensor& indices,
                                                   const Sharding& sharding, std::int64_t count,
                                                   AxisSet axes) {
  const std::int64_t size = count / grid_.size(axes);
  const std::int64_t first = size * grid_.index(number_, axes);
  const Tensor local = local_as(indices, sharding);
  if (host_reads_at_once(local)) {
    static_cast<void>(checked_rows(local, count, who(call.op, call.where)));
  }
  const OpPartitionerScope none(nullptr);
  const DeviceScope here(device());
  const Tensor zero = Tensor::scalar(0, DType::kInt64, device());
  const Tensor shifted = cast(local, DType::kInt64) -
                         Tensor::scalar(static_cast<double>(first), DType::kInt64, device());
  const Tensor size_here = Tensor::scalar(static_cast<double>(size), DType::kInt64, device());
  const Tensor are_own = logical_and(greater_equal(shifted, zero), less(shifted, size_here));
  return {where(are_own, shifted, zero), are_own, size};
}

Tensor MeshPosition::looked_up(const OpCall& call, std::span<const ShardedTensor> inputs) {
  const AxisSet axes = inputs[0].sharding[0];
  Sharding of_indices = inputs[1].sharding;
  for (AxisSet& dim : of_indices.dims) dim &= static_cast<AxisSet>(~axes);
  of_indices.partial = 0;
  const OwnIndices own =
      own_indices(call, inputs[1], of_indices, inputs[0].spec.shape.dim(0), axes);
  Sharding of_params;
  of_params[0] = axes;
  const Tensor params = local_as(inputs[0], of_params);
  ShardedTensor result{of_indices, {}, call.outputs[0]};
  result.sharding.partial = axes;
  const OpPartitionerScope none(nullptr);
  const DeviceScope here(device());
  Tensor are_own = cast(own.are_own, params.dtype());
  for (int d = 1; d < params.rank(); ++d) are_own = expand_dims(are_own, -1);
  result.local = gather(params, own.indices) * are_own;
  return tensor_of(result);
}

Tensor MeshPosition::hits(const OpCall& call, std::span<const ShardedTensor> inputs) {
  const ShardedTensor& logits = inputs[1];
  const int of_classes = logits.spec.shape.rank() - 1;
  Sharding of_labels = logits.sharding;
  of_labels[of_classes] = 0;
  const OwnIndices own = own_indices(call, inputs[0], of_labels, logits.spec.shape.dim(of_classes),
                                     logits.sharding[of_classes]);
  ShardedTensor result{logits.sharding, {}, logits.spec};
  const OpPartitionerScope none(nullptr);
  const DeviceScope here(device());
  result.local = one_hot(own.indices, own.size, logits.spec.dtype) *
                 expand_dims(cast(own.are_own, logits.spec.dtype), -1);
  return tensor_of(result);
}

std::optional<std::vector<Tensor>> MeshPosition::attended(const OpCall& call,
                                                          std::span<const ShardedTensor> inputs) {
  // Tensors are [batch, heads, length, ...]. A head needs the full sequence, so the tensors are
  // temporarily sharded by heads instead of sequence positions. Jacobs et al., "DeepSpeed Ulysses",
  // arXiv:2309.14509.
  constexpr int kHeads = 1, kLength = 2;
  const AxisSet axes = inputs[0].sharding[kLength];
  if (axes == 0) return std::nullopt;
  const auto with_heads = [&](const Sharding& sharding) {
    Sharding result = sharding;
    result[kHeads] |= axes;
    for (AxisSet& dim : result.dims) {
      if (&dim != &result[kHeads]) dim &= static_cast<AxisSet>(~axes);
    }
    result.partial &= static_cast<AxisSet>(~axes);
    return result;
  };
  std::vector<ShardedTensor> by_heads;
  for (const ShardedTensor& input : inputs) {
    const Sharding sharding = with_heads(input.sharding);
    if (!grid_.divides(input.spec.shape, sharding)) return std::nullopt;
    by_heads.push_back({sharding, {}, input.spec});
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    by_heads[i].local = local_as(inputs[i], by_heads[i].sharding);
  }
  std::vector<Tensor> outputs = run_by_rule(call, *rule_of(call), by_heads);
  for (Tensor& output : outputs) {
    const ShardedTensor value = part_of(output);
    Sharding sharding = value.sharding;
    sharding[kHeads] &= static_cast<AxisSet>(~axes);
    sharding[kLength] |= axes;
    if (!grid_.divides(value.spec.shape, sharding)) continue;
    output = tensor_of({sharding, local_as(value, sharding), value.spec});
  }
  return outputs;
}

std::optional<std::vector<Tensor>> MeshPosition::run_composed(
    const OpCall& call, std::span<const ShardedTensor> inputs) {
  if (call.inputs[0].num_elements() == 0) return std::nullopt;  // an empty batch has no statistics
  switch (call.op) {
    case OpId::kBatchNormTraining:
      return batch_norm_of_parts(call);
    case OpId::kBatchNormGrad:
      return batch_norm_grad_of_parts(call);
    case OpId::kDropout:
      return std::vector{dropped_out(call, inputs[0])};
    case OpId::kGather:
      if (inputs[0].sharding[0] == 0 || inputs[0].sharding.partial != 0 ||
          inputs[0].spec.dtype == DType::kBool) {
        return std::nullopt;
      }
      return std::vector{looked_up(call, inputs)};
    case OpId::kSparseSoftmaxCrossEntropy:
    case OpId::kSparseSoftmaxCrossEntropyGrad: {
      const ShardedTensor& logits = inputs[1];
      if (logits.sharding[logits.spec.shape.rank() - 1] == 0 || logits.sharding.partial != 0) {
        return std::nullopt;
      }
      const Tensor own = hits(call, inputs);
      return std::vector{call.op == OpId::kSparseSoftmaxCrossEntropy
                             ? sparse_cross_entropy_of_parts(call, own)
                             : sparse_cross_entropy_grad_of_parts(call, own)};
    }
    case OpId::kAttention:
    case OpId::kAttentionGrad:
      return attended(call, inputs);
    case OpId::kMatMul:
    case OpId::kConv2d: {
      // If the contracted dimension is sharded, the bias and the activation are applied to the sum
      // of the partial products.
      const bool is_product = call.op == OpId::kMatMul;
      const FusedActivation activation = is_product
                                             ? call.attributes_as<MatMulAttributes>().activation
                                             : call.attributes_as<Conv2dAttributes>().activation;
      if (call.inputs.size() == 2 && activation == FusedActivation::kNone) return std::nullopt;
      const OpRule rule = *rule_of(call);
      const Assignment axes = assign_axes(call, rule, inputs);
      if (axes.of_factor[2] == 0) return std::nullopt;  // factor 2: k, or input channels
      OpCall bare = call;
      bare.inputs.resize(2);
      if (is_product) {
        std::get<MatMulAttributes>(bare.attributes).activation = FusedActivation::kNone;
      } else {
        std::get<Conv2dAttributes>(bare.attributes).activation = FusedActivation::kNone;
      }
      Tensor y = run_by_rule(bare, *rule_of(bare), inputs.first(2)).front();
      if (call.inputs.size() == 3) y = y + call.inputs[2];
      return std::vector{activated(y, activation)};
    }
    default:
      return std::nullopt;
  }
}

}  // namespace tutti::internal
