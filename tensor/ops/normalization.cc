// Normalisations: argument checks and dispatch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/normalization.h"

#include <functional>
#include <numeric>

#include "tensor/op_checks.h"

namespace tutti {

// Batch normalisation and local response normalisation.

namespace {

using namespace internal;

/// Checks that parameters and statistics are [channels] and all have the type of x, or all float32
/// if x has a 16-bit type.
void check_channels(OpId op, const Operand& x, std::span<const Tensor> per_channel) {
  require_floating(op, x);
  if (x.shape().rank() < 2) {
    fail_op(op, x.where, "expected an input [batch, ..., channels], got ", x.shape());
  }
  const std::int64_t channels = x.shape().dim(-1);
  const auto fits = [&](const Tensor& tensor) {
    const bool has_wider_type = is_half(x.dtype()) && tensor.dtype() == DType::kFloat32;
    return tensor.shape() == Shape{channels} && tensor.dtype() == per_channel[0].dtype() &&
           (tensor.dtype() == x.dtype() || has_wider_type);
  };
  for (const Tensor& tensor : per_channel) {
    if (!tensor.defined() || !per_channel[0].defined() || !fits(tensor)) {
      fail_op(op, x.where, "expected ", x.dtype(), is_half(x.dtype()) ? " or float32" : "", " [",
              channels, "] for gamma, beta, mean and variance of an input ", x.shape(), ", got ",
              tensor.defined() ? concat(tensor.dtype(), " ", tensor.shape()) : "no tensor");
    }
  }
}

void check_radius(OpId op, const Operand& x, const LrnAttributes& attributes) {
  if (attributes.depth_radius < 0) {
    fail_op(op, x.where, "expected a depth_radius >= 0, got ", attributes.depth_radius);
  }
}

// Throws unless the gradient has x's shape and type.
void check_gradient(OpId op, const Operand& x, const Operand& dy) {
  require_same_dtype(op, defined(op, x), defined(op, dy), dy.where);
  if (dy.shape() != x.shape()) {
    fail_op(op, dy.where, "the gradient does not fit; expected the input's shape ", x.shape(),
            ", got ", dy.shape());
  }
}

}  // namespace

BatchNormResult batch_norm_training(const Operand& x, const Operand& gamma, const Operand& beta,
                                    double epsilon) {
  constexpr OpId op = OpId::kBatchNormTraining;
  const Tensor per_channel[] = {gamma.tensor, beta.tensor};
  check_channels(op, x, per_channel);
  const Shape channels{x.shape().dim(-1)};
  auto outputs =
      dispatch({op,
                {x.tensor, gamma.tensor, beta.tensor},
                {{x.shape(), x.dtype()}, {channels, gamma.dtype()}, {channels, gamma.dtype()}},
                BatchNormAttributes{epsilon},
                x.where});
  return {outputs[0], outputs[1], outputs[2]};
}

Tensor batch_norm_inference(const Operand& x, const Operand& gamma, const Operand& beta,
                            const Operand& mean, const Operand& variance, double epsilon) {
  constexpr OpId op = OpId::kBatchNormInference;
  const Tensor per_channel[] = {gamma.tensor, beta.tensor, mean.tensor, variance.tensor};
  check_channels(op, x, per_channel);
  return dispatch_one({op,
                       {x.tensor, gamma.tensor, beta.tensor, mean.tensor, variance.tensor},
                       {{x.shape(), x.dtype()}},
                       BatchNormAttributes{epsilon},
                       x.where});
}

std::vector<Tensor> batch_norm_grad(const Operand& x, const Operand& gamma, const Operand& mean,
                                    const Operand& variance, const Operand& dy, double epsilon) {
  constexpr OpId op = OpId::kBatchNormGrad;
  const Tensor per_channel[] = {gamma.tensor, mean.tensor, variance.tensor};
  check_channels(op, x, per_channel);
  check_gradient(op, x, dy);
  return dispatch(
      {op,
       {x.tensor, gamma.tensor, mean.tensor, variance.tensor, dy.tensor},
       {{x.shape(), x.dtype()}, {gamma.shape(), gamma.dtype()}, {gamma.shape(), gamma.dtype()}},
       BatchNormAttributes{epsilon},
       dy.where});
}

Tensor local_response_normalization(const Operand& x, LrnAttributes attributes) {
  constexpr OpId op = OpId::kLrn;
  check_channels(op, x, {});
  check_radius(op, x, attributes);
  return dispatch_one({op, {x.tensor}, {{x.shape(), x.dtype()}}, attributes, x.where});
}

Tensor local_response_normalization_grad(const Operand& x, const Operand& dy,
                                         LrnAttributes attributes) {
  constexpr OpId op = OpId::kLrnGrad;
  check_channels(op, x, {});
  check_gradient(op, x, dy);
  check_radius(op, x, attributes);
  return dispatch_one({op, {x.tensor, dy.tensor}, {{x.shape(), x.dtype()}}, attributes, dy.where});
}

// Layer and group normalisation.

namespace {

void check_parameter(std::string_view operation, const Operand& x, const Tensor& parameter,
                     const Shape& expected) {
  if (parameter.defined() && parameter.shape() == expected && parameter.dtype() == x.dtype()) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": expected gamma and beta of ",
       x.dtype(), " ", expected, " for an input of shape ", x.shape(), ", got ",
       parameter.defined() ? concat(parameter.dtype(), " ", parameter.shape()) : "no tensor");
}

std::int64_t product(const std::int64_t* first, const std::int64_t* last) {
  return std::accumulate(first, last, std::int64_t{1}, std::multiplies<>());
}

/// Returns x, normalized. `rows`: the leading dimensions of x; each row has separate statistics.
Tensor normalize(const Operand& x, const Operand& gamma, const Operand& beta,
                 std::vector<std::int64_t> rows, const GroupNormAttributes& attributes) {
  rows.push_back(attributes.groups);
  const Shape statistics(rows);
  std::vector<Tensor> outputs =
      dispatch({OpId::kGroupNorm,
                {x.tensor, gamma.tensor, beta.tensor},
                {{x.shape(), x.dtype()}, {statistics, x.dtype()}, {statistics, x.dtype()}},
                attributes,
                x.where});
  return std::move(outputs[0]);
}

}  // namespace

Tensor layer_norm(const Operand& x, const Operand& gamma, const Operand& beta,
                  LayerNormOptions options) {
  constexpr std::string_view kName = "layer_norm";
  require_floating(OpId::kGroupNorm, x);
  const Shape& s = x.shape();
  if (options.num_axes < 1 || options.num_axes > s.rank()) {
    fail(ErrorCode::kInvalidArgument, who(kName, x.where), ": expected num_axes in 1 .. ", s.rank(),
         " for an input of shape ", s, ", got ", options.num_axes);
  }
  const std::int64_t* first = s.end() - options.num_axes;
  const Shape features(std::vector<std::int64_t>(first, s.end()));
  check_parameter(kName, x, gamma.tensor, features);
  check_parameter(kName, x, beta.tensor, features);
  return normalize(x, gamma, beta, {s.begin(), first}, {1, 1, options.epsilon});
}

Tensor group_norm(const Operand& x, const Operand& gamma, const Operand& beta,
                  GroupNormOptions options) {
  constexpr OpId op = OpId::kGroupNorm;
  require_floating(op, x);
  const Shape& s = x.shape();
  if (s.rank() < 2) fail_op(op, x.where, "expected an input [batch, ..., channels], got ", s);
  const std::int64_t channels = s.dim(-1);
  if (options.groups < 1 || channels % options.groups != 0) {
    fail_op(op, x.where, "expected groups that divide the ", channels, " channels of ", s, ", got ",
            options.groups);
  }
  check_parameter(to_string(op), x, gamma.tensor, Shape{channels});
  check_parameter(to_string(op), x, beta.tensor, Shape{channels});
  const std::int64_t positions = product(s.begin() + 1, s.end() - 1);
  return normalize(x, gamma, beta, {s[0]}, {positions, options.groups, options.epsilon});
}

std::vector<Tensor> group_norm_grad(const Operand& x, const Operand& gamma, const Operand& mean,
                                    const Operand& variance, const Operand& dy,
                                    const GroupNormAttributes& attributes) {
  constexpr OpId op = OpId::kGroupNormGrad;
  require_floating(op, x);
  for (const Operand* other : {&gamma, &mean, &variance, &dy}) {
    require_same_dtype(op, x.tensor, defined(op, *other), dy.where);
  }
  const std::int64_t features = gamma.tensor.num_elements();
  const bool fits =
      dy.shape() == x.shape() && mean.shape() == variance.shape() && mean.shape().rank() >= 1 &&
      mean.shape()[-1] == attributes.groups &&
      mean.tensor.num_elements() / attributes.groups * attributes.positions * features ==
          x.tensor.num_elements();
  if (!fits) {
    fail_op(op, dy.where, "shapes of the normalisation do not match; got input ", x.shape(),
            ", gamma ", gamma.shape(), ", mean ", mean.shape(), ", variance ", variance.shape(),
            " and gradient of the result ", dy.shape());
  }
  return dispatch({op,
                   {x.tensor, gamma.tensor, mean.tensor, variance.tensor, dy.tensor},
                   {{x.shape(), x.dtype()}, {gamma.shape(), x.dtype()}, {gamma.shape(), x.dtype()}},
                   attributes,
                   dy.where});
}

}  // namespace tutti
