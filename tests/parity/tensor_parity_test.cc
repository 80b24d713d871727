// Operations that others make up against TensorFlow's, with gradients, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::parity {
namespace {

using FunctionOfOne = std::function<Tensor(const Tensor&)>;

Tensor in_float64(const Tensor& x) { return cast(x, DType::kFloat64); }

/// What tensor_cases.py multiplies with.
const Tensor& constant(const char* name) { return record_of("tensors").at(name); }

/// The functions of tensor_cases.py.
const std::map<std::string, FunctionOfOne>& tensor_function_table() {
  static const std::map<std::string, FunctionOfOne> table = {
      {"sort", [](const Tensor& x) { return sort(x, {.axis = 1}); }},
      {"sort_descending", [](const Tensor& x) { return sort(x, {.descending = true}); }},
      {"argsort_of_ties", [](const Tensor& x) { return in_float64(argsort(x)); }},
      {"argsort_of_ties_descending",
       [](const Tensor& x) { return in_float64(argsort(x, {.descending = true})); }},
      {"argsort_axis_0", [](const Tensor& x) { return in_float64(argsort(x, {.axis = 0})); }},
      {"variance", [](const Tensor& x) { return reduce_variance(x); }},
      {"variance_axis", [](const Tensor& x) { return reduce_variance(x, {.axes = {1}}); }},
      {"std",
       [](const Tensor& x) {
         return reduce_std(x, {.axes = {0, 2}, .keep_dims = true});
       }},
      {"logsumexp", [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {2}}); }},
      {"logsumexp_all", [](const Tensor& x) { return reduce_logsumexp(x); }},
      {"logsumexp_keep",
       [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {1}, .keep_dims = true}); }},
      {"cumprod", [](const Tensor& x) { return cumulative_product(x, {.axis = 2}); }},
      {"cumprod_exclusive",
       [](const Tensor& x) { return cumulative_product(x, {.axis = 1, .exclusive = true}); }},
      {"cumprod_reverse",
       [](const Tensor& x) {
         return cumulative_product(x, {.axis = -1, .exclusive = true, .reverse = true});
       }},
      {"roll", [](const Tensor& x) { return roll(x, 7, 2); }},
      {"roll_back", [](const Tensor& x) { return roll(x, -1, 0); }},
      {"tril", [](const Tensor& x) { return tril(x); }},
      {"triu", [](const Tensor& x) { return triu(x); }},
      {"scatter",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int64_t>({3, 1}, {1, 0, 1}), x, {4, 5});
       }},
      {"scatter_elements",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int32_t>({4, 2}, {0, 4, 2, 0, 2, 1, 0, 4}), x, {3, 5});
       }},
      {"boolean_mask",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3}, {true, false, true}));
       }},
      {"boolean_mask_of_elements",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3, 5}, {true, false, true, true, false,   //
                                                            false, false, false, true, true,  //
                                                            true, true, true, true, true}));
       }},
      {"isnan", [](const Tensor& x) { return in_float64(isnan(x)); }},
      {"isinf", [](const Tensor& x) { return in_float64(isinf(x)); }},
      {"isfinite", [](const Tensor& x) { return in_float64(isfinite(x)); }},
      {"floor_mod", [](const Tensor& x) { return x % 2.0; }},
      {"floor_mod_by_negative", [](const Tensor& x) { return x % -2.0; }},
      {"floor_divide", [](const Tensor& x) { return floor_divide(x, 2.0); }},
      {"einsum_product",
       [](const Tensor& x) {
         return einsum("ij,jk->ik", {x, constant("matrix")});
       }},
      {"einsum_batch",
       [](const Tensor& x) {
         return einsum("bij,bjk->bik", {x, constant("stack")});
       }},
      {"einsum_trace", [](const Tensor& x) { return einsum("ii->", {x}); }},
      {"einsum_diagonal", [](const Tensor& x) { return einsum("...ii->...i", {x}); }},
      {"einsum_transpose", [](const Tensor& x) { return einsum("...ij->...ji", {x}); }},
      {"einsum_ellipsis",
       [](const Tensor& x) {
         return einsum("...ij, jk -> ...ik", {x, constant("matrix")});
       }},
      {"einsum_implied", [](const Tensor& x) { return einsum("ba", {x}); }},
      {"einsum_outer",
       [](const Tensor& x) {
         return einsum("i,j->ji", {x, constant("vector")});
       }},
      {"einsum_three",
       [](const Tensor& x) {
         return einsum("bij,jk,i->bk", {x, constant("matrix"), constant("vector")});
       }},
      {"einsum_summed_alone",
       [](const Tensor& x) {
         return einsum("bij,kl->b", {x, constant("matrix")});
       }},
      {"index", [](const Tensor& x) { return x[1]; }},
      {"index_from_end",
       [](const Tensor& x) {
         return x[{Range{}, -1, Range{1, 4}}];
       }},
      {"index_ranges",
       [](const Tensor& x) {
         return x[{Range{0, 1}, Range{1}, Range{-9, -1}}];
       }},
  };
  return table;
}

class TensorParity : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParity, IsTensorFlowForwardAndBackward) {
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("tensors");
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = tensor_function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  expect_close(y, record.at(prefix + "y"), 1e-12, "y");
  const Tensor expected = record.at(prefix + "gradient");
  if (const Gradient gradient = tape.gradient(target, std::vector<Variable>{x})[0];
      !gradient.is_none()) {
    expect_close(gradient.to_dense(), expected, 1e-10, "gradient");
  } else {
    expect_close(Tensor::zeros(expected.shape(), DType::kFloat64), expected, 0.0, "no gradient");
  }
}

TUTTI_PARITY_CASES(TensorParity, tensor_function_table(), "tensors");

}  // namespace
}  // namespace tutti::parity
