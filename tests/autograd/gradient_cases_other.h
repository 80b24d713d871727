// Cases of the gradient check: reductions, softmax and losses, operations that move elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/autograd/gradient_case.h"

namespace tutti::gradient_check {

using Tensors = std::vector<Tensor>;

inline std::vector<Case> reduction_cases() {
  std::vector<Case> cases;
  using Reduce = Tensor (*)(const Operand&, ReduceOptions);
  const std::pair<OpId, Reduce> reductions[] = {{OpId::kReduceSum, reduce_sum},
                                                {OpId::kReduceMean, reduce_mean},
                                                {OpId::kReduceMax, reduce_max},
                                                {OpId::kReduceMin, reduce_min},
                                                {OpId::kReduceProduct, reduce_product}};
  const ReduceOptions options[] = {
      {}, {{0}, false}, {{1}, true}, {{-1}, false}, {{0, 2}, false}, {{}, true}, {{2, 1}, true}};
  for (const auto& [op, reduce] : reductions) {
    for (const ReduceOptions& option : options) {
      cases.push_back(
          {op,
           concat("[2, 3, 4] axes ", join(option.axes), option.keep_dims ? " kept" : ""),
           {{{2, 3, 4}, -1.5, 1.5, true}},
           [reduce = reduce, option](const Tensors& t) { return reduce(t[0], option); }});
    }
    cases.push_back({op, "vector", {{{5}, 0.5, 1.5, true}}, [reduce = reduce](const Tensors& t) {
                       return reduce(t[0], {});
                     }});
  }
  const std::vector<double> with_zeros = {2, 0, 3, 0, 0, 4, 5, 6, 7};
  cases.push_back({OpId::kReduceProduct,
                   "rows with no, one and two zeros",
                   {{{3, 3}, 0, 0, true, DType::kFloat64, 0, with_zeros}},
                   [](const Tensors& t) {
                     return reduce_product(t[0], {{1}, false});
                   }});
  cases.push_back(
      {OpId::kReduceSum, "sum_to_shape", {{{2, 3, 4}, -1, 1, true}}, [](const Tensors& t) {
         return sum_to_shape(t[0], {3, 1});
       }});
  return cases;
}

inline std::vector<Case> softmax_cases() {
  const Input logits{{4, 3}, -2, 2, true};
  const Input deep_logits{{2, 2, 3}, -2, 2, true};
  const Input dy{{4, 3}, -1, 1, true}, column{{4}, -1, 1, true};
  const Input labels{{4}, 0, 0, true, DType::kInt64, 0, {2, 0, 1, 0}};
  const std::vector<double> rows = {.2, .3, .5, 1, 0, 0, .1, .8, .1, .25, .25, .5};
  const Input distribution{{4, 3}, 0, 0, true, DType::kFloat64, 0, rows};
  std::vector<Case> cases;
  for (const Input& input : {logits, deep_logits}) {
    const std::string name = input.shape.to_string();
    cases.push_back(
        {OpId::kSoftmax, name, {input}, [](const Tensors& t) { return softmax(t[0]); }});
    cases.push_back(
        {OpId::kLogSoftmax, name, {input}, [](const Tensors& t) { return log_softmax(t[0]); }});
  }
  cases.push_back({OpId::kSoftmaxGrad, "y, dy", {logits, dy}, [](const Tensors& t) {
                     return softmax_grad(t[0], t[1]);
                   }});
  cases.push_back({OpId::kLogSoftmaxGrad, "y, dy", {logits, dy}, [](const Tensors& t) {
                     return log_softmax_grad(t[0], t[1]);
                   }});
  // Moving a label alone leaves the distributions, which the gradient of the logits relies on in
  // second order.
  cases.push_back({OpId::kSoftmaxCrossEntropy,
                   "labels, logits",
                   {distribution, logits},
                   [](const Tensors& t) { return softmax_cross_entropy(t[0], t[1]); },
                   Orders::kFirst});
  cases.push_back({OpId::kSoftmaxCrossEntropy,
                   "logits",
                   {distribution, logits},
                   [](const Tensors& t) { return softmax_cross_entropy(t[0], t[1]); },
                   Orders::kFirstAndSecond,
                   1e-5,
                   1e-6,
                   {0}});
  cases.push_back(
      {OpId::kSparseSoftmaxCrossEntropy, "logits", {labels, logits}, [](const Tensors& t) {
         return sparse_softmax_cross_entropy(t[0], t[1]);
       }});
  cases.push_back(
      {OpId::kSparseSoftmaxCrossEntropyGrad,
       "logits, dy",
       {labels, logits, column},
       [](const Tensors& t) { return sparse_softmax_cross_entropy_grad(t[0], t[1], t[2]); }});
  cases.push_back({OpId::kSigmoidCrossEntropy,
                   "labels, logits",
                   {{{4, 3}, 0, 1, true}, {{4, 3}, -2, 2, true, DType::kFloat64, 0.1}},
                   [](const Tensors& t) { return sigmoid_cross_entropy(t[0], t[1]); }});
  return cases;
}

inline std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  const auto add_case = [&](const char* name, std::int64_t shared, AttentionOptions options) {
    const Input query{{2, 4, 3, 2}, -1, 1, true};
    const Input key{{2, shared, 5, 2}, -1, 1, true}, value{{2, shared, 5, 3}, -1, 1, true};
    cases.push_back({OpId::kAttention, name, {query, key, value}, [options](const Tensors& t) {
                       return attention(t[0], t[1], t[2], options);
                     }});
  };
  add_case("all keys", 4, {});
  add_case("causal", 4, {.is_causal = true});
  add_case("causal behind a step, keys of two heads", 2, {.is_causal = true, .steps_before = 1});
  add_case("another scale, one key for all heads", 1, {.scale = 0.3});
  return cases;
}

inline std::vector<Case> shape_cases() {
  const Input batch{{3, 4}, -1, 1, true}, cube{{2, 3, 4}, -1, 1, true};
  const Input table{{5, 2}};
  const Input rows{{4}, 0, 0, true, DType::kInt64, 0, {3, 0, 3, 4}};
  const Input grid{{2, 3}, 0, 0, true, DType::kInt32, 0, {1, 4, 1, 0, 1, 2}};
  std::vector<Case> cases;
  const auto add_case = [&](OpId op, const char* name, std::vector<Input> inputs,
                            Function function) {
    cases.push_back({op, name, std::move(inputs), std::move(function)});
  };
  const auto size = [](const Tensor& x) { return x.shape()[0]; };
  add_case(OpId::kReshape, "to [6, 4]", {cube}, [size](const Tensors& t) {
    return reshape(t[0], Shape{size(t[0]) * 3, 4});
  });
  add_case(OpId::kReshape, "flatten_rows", {cube},
           [](const Tensors& t) { return flatten_rows(t[0]); });
  add_case(OpId::kReshape, "expand and squeeze", {batch},
           [](const Tensors& t) { return squeeze(square(expand_dims(t[0], 1)), 1); });
  add_case(OpId::kTranspose, "reversed", {cube}, [](const Tensors& t) { return transpose(t[0]); });
  add_case(OpId::kTranspose, "1 2 0", {cube}, [](const Tensors& t) {
    return transpose(t[0], {1, 2, 0});
  });
  add_case(OpId::kSlice, "inner part", {cube}, [](const Tensors& t) {
    return slice(t[0], {0, 1, 1}, {-1, 1, 2});
  });
  add_case(OpId::kSlice, "split in parts", {batch}, [](const Tensors& t) {
    const std::vector<Tensor> parts = split(t[0], {1, 3}, 1);
    return parts[0] * parts[1];
  });
  add_case(OpId::kSlice, "split evenly", {batch},
           [](const Tensors& t) { return split(t[0], 2, 1)[1]; });
  add_case(OpId::kPad, "all sides", {batch}, [](const Tensors& t) {
    return pad(t[0], {0, 2}, {1, 0}, 0.5);
  });
  add_case(OpId::kConcat, "axis 1", {batch, {{3, 2}, -1, 1, true}}, [](const Tensors& t) {
    return concat({t[0], t[1]}, 1);
  });
  add_case(OpId::kConcat, "axis 0, one tensor twice", {batch, {{2, 4}, -1, 1, true}},
           [](const Tensors& t) {
             return concat({t[0], t[1], t[0]}, 0);
           });
  add_case(OpId::kConcat, "stack", {batch, batch}, [](const Tensors& t) {
    return stack(std::vector<Tensor>{t[0], t[1]});
  });
  add_case(OpId::kBroadcastTo, "new axis in front", {batch}, [size](const Tensors& t) {
    return broadcast_to(t[0], {2, size(t[0]), 4});
  });
  add_case(OpId::kBroadcastTo, "axis of 1", {{{3, 1, 2}, -1, 1, true}}, [size](const Tensors& t) {
    return broadcast_to(t[0], {size(t[0]), 4, 2});
  });
  add_case(OpId::kGather, "rows, one twice", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]); });
  add_case(OpId::kGather, "grid of int32", {{{5, 2, 2}}, grid},
           [](const Tensors& t) { return gather(t[0], t[1]); });
  add_case(OpId::kGather, "twice from one table", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]) * exp(gather(t[0] * 2.0, t[1])); });
  add_case(OpId::kGather, "of a dense use too", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]) * reduce_sum(square(t[0])); });
  for (const bool exclusive : {false, true}) {
    for (const bool backwards : {false, true}) {
      add_case(OpId::kCumulativeSum, concat("axis 1 ", exclusive, backwards).c_str(), {cube},
               [=](const Tensors& t) {
                 return cumulative_sum(t[0], {1, exclusive, backwards});
               });
    }
  }
  add_case(OpId::kReverse, "axes 0 and 2", {cube}, [](const Tensors& t) {
    return reverse(t[0], {0, -1});
  });
  add_case(OpId::kTopK, "2 of 4", {cube}, [](const Tensors& t) { return top_k(t[0], 2).values; });
  add_case(OpId::kBroadcastTo, "tile", {batch}, [](const Tensors& t) {
    return tile(t[0], {2, 3});
  });
  add_case(OpId::kBroadcastTo, "repeat", {batch},
           [](const Tensors& t) { return repeat(t[0], 2, 1); });
  add_case(OpId::kConcat, "stack along 1 and unstack", {batch, batch}, [](const Tensors& t) {
    const Tensor both = stack({t[0], t[1]}, 1);
    const std::vector<Tensor> parts = unstack(both, 2);
    return parts[0] * parts[3];
  });
  add_case(OpId::kGather, "along axis 2", {{{2, 2, 5}}, grid},
           [](const Tensors& t) { return gather(t[0], t[1], 2); });
  const Input picture{{2, 3, 2, 2}, -1, 1, true}, large{{2, 6, 6, 1}, -1, 1, true};
  for (const Interpolation kind : {Interpolation::kNearest, Interpolation::kBilinear}) {
    const char* name = kind == Interpolation::kNearest ? "nearest" : "bilinear";
    add_case(OpId::kUpsample, name, {picture}, [kind](const Tensors& t) {
      return upsample2d(t[0], {2, 3, kind});
    });
    add_case(OpId::kUpsampleGrad, name, {large}, [kind, size](const Tensors& t) {
      return upsample2d_grad(t[0], {size(t[0]), 3, 2, 1}, {2, 3, kind});
    });
  }
  add_case(OpId::kScatterRows, "one row twice", {{{4, 2}, -1, 1, true}, rows},
           [](const Tensors& t) {
             return scatter_rows(t[0], t[1], {5, 2});
           });
  return cases;
}

}  // namespace tutti::gradient_check
