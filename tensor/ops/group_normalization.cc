// Layer and group normalisation: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>

#include "tutti/tensor/ops/checks.h"
#include "tutti/tensor/ops/normalization.h"

namespace tutti {
namespace {

using namespace internal;

void check_parameter(std::string_view operation, const Operand& x, const Tensor& parameter,
                     const Shape& expected) {
  if (parameter.defined() && parameter.shape() == expected && parameter.dtype() == x.dtype()) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": expected gamma and beta of ",
       x.dtype(), " ", expected, " for an input ", x.shape(), ", got ",
       parameter.defined() ? concat(parameter.dtype(), " ", parameter.shape()) : "no tensor");
}

std::int64_t product(const std::int64_t* first, const std::int64_t* last) {
  return std::accumulate(first, last, std::int64_t{1}, std::multiplies<>());
}

Tensor normalize(const Operand& x, const Operand& gamma, const Operand& beta, std::int64_t batch,
                 const GroupNormAttributes& attributes) {
  const Shape statistics{batch, attributes.groups};
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
    fail(ErrorCode::kInvalidArgument, who(kName, x.where), ": expected num_axes of 1 .. ", s.rank(),
         " for an input ", s, ", got ", options.num_axes);
  }
  const std::int64_t* first = s.end() - options.num_axes;
  const Shape features(std::vector<std::int64_t>(first, s.end()));
  check_parameter(kName, x, gamma.tensor, features);
  check_parameter(kName, x, beta.tensor, features);
  return normalize(x, gamma, beta, product(s.begin(), first), {1, 1, options.epsilon});
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
  return normalize(x, gamma, beta, s[0], {positions, options.groups, options.epsilon});
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
  const bool fits = dy.shape() == x.shape() && mean.shape() == variance.shape() &&
                    mean.shape().rank() == 2 && mean.shape()[1] == attributes.groups &&
                    mean.shape()[0] * attributes.positions * features == x.tensor.num_elements();
  if (!fits) {
    fail_op(op, dy.where, "shapes do not belong to one normalisation; got input ", x.shape(),
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
