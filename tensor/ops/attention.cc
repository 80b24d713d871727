// Attention: for each query, the mean of the values, weighted by how well their keys match the
// query.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/attention.h"

#include <cmath>

#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Attention composed of other operations.

namespace {

/// Score of masked keys, as in Keras; finite in every type (float16's maximum is 65504).
double unseen(DType dtype) { return dtype == DType::kFloat16 ? -3e4 : -1e9; }

/// Reshapes x [batch, h, steps, length] to `heads` heads: concatenates the steps of heads that
/// share a key, or separates them again.
Tensor with_heads(const Tensor& x, std::int64_t heads) {
  const Shape& shape = x.shape();
  if (shape[1] == heads) return x;
  return reshape(x, Shape{shape[0], heads, shape[1] * shape[2] / heads, shape[3]});
}

}  // namespace

Tensor internal::causal_mask(std::int64_t steps, std::int64_t value_steps,
                             std::int64_t steps_before, Device device) {
  std::vector<double> mask(static_cast<std::size_t>(steps * value_steps), 0.0);
  for (std::int64_t i = 0; i < steps; ++i)
    for (std::int64_t j = 0; j <= steps_before + i && j < value_steps; ++j)
      mask[static_cast<std::size_t>(i * value_steps + j)] = 1.0;
  return cast(Tensor::from(Shape{steps, value_steps}, mask, device), DType::kBool);
}

Tensor internal::attention_shares(const Tensor& query, const Tensor& key, double scale,
                                  const Tensor& seen) {
  const Tensor grouped = with_heads(query * scale, key.shape()[1]);
  const Tensor scores = with_heads(matmul(grouped, key, {.transpose_b = true}), query.shape()[1]);
  if (!seen.defined()) return softmax(scores);
  const Tensor shares = softmax(where(seen, scores, unseen(scores.dtype())));
  // If a query attends to no key, softmax() gives all masked keys equal weights instead of 0.
  return where(seen, shares, 0.0);
}

Tensor internal::mixed_values(const Tensor& shares, const Tensor& value) {
  return with_heads(matmul(with_heads(shares, value.shape()[1]), value), shares.shape()[1]);
}

std::vector<Tensor> internal::attention_grad_of_shares(const Tensor& query, const Tensor& key,
                                                       const Tensor& value, const Tensor& shares,
                                                       const Tensor& dy, double scale) {
  const std::int64_t heads = query.shape()[1], shared = key.shape()[1];
  const Tensor grouped_dy = with_heads(dy, shared);
  const Tensor d_shares = with_heads(matmul(grouped_dy, value, {.transpose_b = true}), heads);
  const Tensor d_scores = with_heads(softmax_grad(shares, d_shares), shared);
  return {with_heads(matmul(d_scores, key), heads) * scale,
          matmul(d_scores, with_heads(query * scale, shared), {.transpose_a = true}),
          matmul(with_heads(shares, shared), grouped_dy, {.transpose_a = true})};
}

// Attention as one operation.

namespace {

using namespace internal;

void check_attention(OpId op, const Operand& query, const Operand& key, const Operand& value,
                     std::int64_t steps_before) {
  require_floating(op, query);
  for (const Operand* other : {&key, &value})
    require_same_dtype(op, query.tensor, defined(op, *other), query.where);
  const Shape& q = query.shape();
  const Shape& k = key.shape();
  const Shape& v = value.shape();
  const bool fits = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && q[0] == k[0] &&
                    k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] && k[1] > 0 &&
                    q[1] % k[1] == 0;
  if (!fits) {
    fail_op(op, query.where,
            "expected a query [batch, heads, steps, features], a key [batch, shared, value steps, "
            "features] and a value [batch, shared, value steps, length], where `shared` "
            "divides `heads`, got ",
            q, ", ", k, " and ", v);
  }
  if (steps_before < 0) {
    fail_op(op, query.where, "expected steps_before >= 0, got ", steps_before);
  }
}

/// Returns the type in which exponentials are summed.
DType type_of_sums(DType dtype) { return is_half(dtype) ? DType::kFloat32 : dtype; }

}  // namespace

Tensor attention(const Operand& query, const Operand& key, const Operand& value,
                 AttentionOptions options) {
  check_attention(OpId::kAttention, query, key, value, options.steps_before);
  const Shape& q = query.shape();
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q[3])));
  // In a traced step, attention is composed below, because XLA has no such operation. A partitioner
  // handles the attention operation directly, even in a traced step.
  if (!StepTracer::current() || OpPartitioner::current()) {
    std::vector<Tensor> outputs =
        dispatch({OpId::kAttention,
                  {query.tensor, key.tensor, value.tensor},
                  {{q.with_dim(3, value.shape()[3]), query.dtype()},
                   {Shape{q[0], q[1], q[2]}, type_of_sums(query.dtype())}},
                  AttentionAttributes{scale, options.is_causal, options.steps_before},
                  query.where});
    return std::move(outputs[0]);
  }
  const Tensor seen = options.is_causal ? causal_mask(q[2], key.shape()[2], options.steps_before,
                                                      device_beside(query.tensor))
                                        : Tensor();
  return mixed_values(attention_shares(query.tensor, key.tensor, scale, seen), value.tensor);
}

std::vector<Tensor> attention_grad(const Operand& query, const Operand& key, const Operand& value,
                                   const Operand& result, const Operand& sums, const Operand& dy,
                                   const AttentionAttributes& attributes) {
  constexpr OpId op = OpId::kAttentionGrad;
  check_attention(op, query, key, value, attributes.steps_before);
  require_dtype(op, sums, type_of_sums(query.dtype()));
  const Shape& q = query.shape();
  const Shape expected = q.with_dim(3, value.shape()[3]);
  const bool fits = defined(op, result).shape() == expected &&
                    defined(op, dy).shape() == expected && sums.shape() == Shape{q[0], q[1], q[2]};
  if (!fits) {
    fail_op(op, dy.where, "shapes of the attention do not match; expected results and gradients ",
            expected, " and sums ", Shape{q[0], q[1], q[2]}, ", got ", result.shape(), ", ",
            dy.shape(), " and ", sums.shape());
  }
  return dispatch({op,
                   {query.tensor, key.tensor, value.tensor, result.tensor, sums.tensor, dy.tensor},
                   {{q, query.dtype()}, {key.shape(), key.dtype()}, {value.shape(), value.dtype()}},
                   attributes,
                   dy.where});
}

}  // namespace tutti
