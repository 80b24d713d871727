// Additional programs for device_check: large tensors of odd sizes, integers, comparisons and
// conversions.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/recorded_calls.h"
#include "tutti/core/text.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::device_check {
namespace {

using Tensors = std::vector<Tensor>;

/// Returns uniform values in [low, high], rounded to multiples of 1/64 and cast to `dtype`.
Tensor values(const Shape& shape, DType dtype, double low, double high, std::uint64_t key) {
  const Tensor x = random_uniform(shape, {.seed = 5, .purpose = kUserPurpose, .a = key}, low, high);
  if (dtype == DType::kBool) return greater(x, 0.5 * (low + high));
  return cast(round(x * 64.0f) / 64.0f, dtype);
}

/// Collects programs whose inputs all have the type `dtype`.
class Programs {
 public:
  explicit Programs(DType dtype) : dtype_(dtype) {}

  void add(const std::string& name, const std::vector<Shape>& shapes,
           std::function<Tensor(const Tensors&)> function, double low = -2.0, double high = 2.0) {
    Program program{.name = concat(name, " ", dtype_), .function = std::move(function)};
    for (const Shape& shape : shapes) {
      program.inputs.push_back(values(shape, dtype_, low, high, ++key_));
      program.is_source.push_back(is_floating(dtype_));
    }
    list_.push_back(std::move(program));
  }
  std::vector<Program> take() { return std::move(list_); }

 private:
  DType dtype_;
  std::uint64_t key_ = 0;
  std::vector<Program> list_;
};

Tensor class_numbers(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<std::int64_t>(i * 7) % classes;
  }
  return Tensor::from(Shape{rows}, numbers);
}

void add_elementwise(Programs& programs) {
  using Unary = Tensor (*)(const Operand&);
  const std::pair<const char*, Unary> any[] = {
      {"negate", negate}, {"exp", exp},           {"square", square}, {"abs", abs},
      {"sign", sign},     {"floor", floor},       {"ceil", ceil},     {"round", round},
      {"erf", erf},       {"sin", sin},           {"cos", cos},       {"relu", relu},
      {"tanh", tanh},     {"sigmoid", sigmoid},   {"gelu", gelu},     {"elu", elu},
      {"expm1", expm1},   {"softplus", softplus}, {"silu", silu}};
  for (const auto& [name, function] : any) {
    programs.add(
        concat("wide ", name), {{70'001}},
        [function = function](const Tensors& t) { return function(t[0]); }, -6.0, 6.0);
  }
  const std::pair<const char*, Unary> positive[] = {
      {"log", log}, {"sqrt", sqrt}, {"rsqrt", rsqrt}, {"reciprocal", reciprocal}, {"log1p", log1p}};
  for (const auto& [name, function] : positive) {
    programs.add(
        concat("wide ", name), {{3, 20'011}},
        [function = function](const Tensors& t) { return function(t[0]); }, 0.25, 6.0);
  }
  const auto sum = [](const Tensors& t) { return t[0] + t[1] * t[0]; };
  programs.add("wide broadcast, one row", {{517, 129}, {129}}, sum);
  programs.add("wide broadcast, one column", {{517, 129}, {517, 1}}, sum);
  programs.add("wide broadcast, middle axis", {{9, 1, 33, 7}, {9, 21, 1, 7}}, sum);
  programs.add("wide broadcast, number", {{70'001}, {}}, sum);
  programs.add(
      "wide quotient and power", {{301, 67}, {301, 67}},
      [](const Tensors& t) { return t[0] / t[1] + pow(t[0], t[1]); }, 0.25, 2.0);
  programs.add("wide misaligned rows", {{33, 101}}, [](const Tensors& t) {
    return exp(t[0].detached_rows(1, 31)) + relu(t[0].detached_rows(2, 31));
  });
  programs.add("wide choice", {{301, 67}, {301, 67}}, [](const Tensors& t) {
    return where(greater(t[0], t[1]), t[0] * 2.0f, clip(t[1], -1.0, 0.5));
  });
  programs.add("wide dropout", {{129, 515}}, [](const Tensors& t) {
    return dropout(t[0], 0.3, RandomKey{9, kDropoutPurpose, 1, 2, 3});
  });
}

void add_reductions(Programs& programs) {
  const std::vector<int> axes[] = {{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {}};
  for (const std::vector<int>& each : axes) {
    const std::string over = concat("wide reductions over [", join(each), "]");
    programs.add(over, {{35, 67, 129}}, [each](const Tensors& t) {
      return reduce_sum(t[0], {each}) + reduce_mean(t[0], {each}) + reduce_max(t[0], {each}) +
             reduce_min(t[0], {each});
    });
  }
  programs.add(
      "wide product", {{517, 9}},
      [](const Tensors& t) {
        return reduce_product(t[0], {{1}, false});
      },
      0.5, 1.5);
  programs.add("wide softmax", {{129, 1000}},
               [](const Tensors& t) { return softmax(t[0]) + log_softmax(t[0]); });
  programs.add("wide cross-entropy", {{129, 1000}}, [](const Tensors& t) {
    return sparse_softmax_cross_entropy(class_numbers(129, 1000), t[0]);
  });
  programs.add("wide running sum", {{9, 3001}},
               [](const Tensors& t) { return cumulative_sum(t[0], {.axis = 1}); });
  programs.add("wide largest", {{33, 517}}, [](const Tensors& t) { return top_k(t[0], 9).values; });
}

void add_networks(Programs& programs) {
  for (const auto& [m, k, n] : {std::array{33, 257, 65}, {128, 64, 256}, {1, 1000, 7}}) {
    programs.add(
        concat("wide product ", m, " ", k, " ", n), {{m, k}, {k, n}, {n}},
        [](const Tensors& t) { return dense(t[0], t[1], t[2], FusedActivation::kRelu); }, -0.5,
        0.5);
  }
  programs.add(
      "wide batched product", {{12, 33, 65}, {12, 65, 17}},
      [](const Tensors& t) { return matmul(t[0], t[1]); }, -0.5, 0.5);
  struct Convolution {
    Shape image, filter;
    int stride;
    Padding padding;
  };
  const Convolution convolutions[] = {{{3, 32, 32, 3}, {3, 3, 3, 16}, 1, Padding::kSame},
                                      {{2, 17, 15, 16}, {3, 3, 16, 32}, 2, Padding::kSame},
                                      {{2, 16, 16, 16}, {3, 3, 16, 24}, 2, Padding::kSame},
                                      {{2, 28, 28, 24}, {1, 1, 24, 48}, 2, Padding::kSame},
                                      {{2, 14, 14, 64}, {1, 1, 64, 32}, 1, Padding::kValid},
                                      {{2, 33, 33, 3}, {7, 7, 3, 8}, 2, Padding::kSame},
                                      {{2, 24, 24, 5}, {5, 5, 5, 7}, 1, Padding::kValid}};
  for (const Convolution& c : convolutions) {
    programs.add(
        concat("wide convolution of ", c.image, " with ", c.filter, " every ", c.stride),
        {c.image, c.filter, {c.filter[3]}},
        [c](const Tensors& t) {
          Conv2dOptions options;
          options.stride_h = options.stride_w = c.stride;
          options.padding = c.padding;
          options.activation = FusedActivation::kRelu;
          return conv2d(t[0], t[1], options) + conv2d(t[0], t[1], t[2], options);
        },
        -0.5, 0.5);
  }
  // This program has partial tiles, shared keys, and keys that precede the first query; the next
  // one has wide heads.
  programs.add("wide attention", {{2, 4, 70, 24}, {2, 2, 131, 24}, {2, 2, 131, 33}},
               [](const Tensors& t) {
                 return attention(t[0], t[1], t[2], {.is_causal = true, .steps_before = 61});
               });
  programs.add("wide attention of wide heads", {{1, 2, 65, 130}, {1, 2, 63, 130}, {1, 2, 63, 140}},
               [](const Tensors& t) { return attention(t[0], t[1], t[2]); });
  programs.add("wide pools", {{3, 29, 31, 17}}, [](const Tensors& t) {
    const Pool2dOptions pool{3, 3, 2, 2, Padding::kSame};
    return max_pool2d(t[0], pool) + average_pool2d(t[0], pool);
  });
  programs.add("wide global pool", {{5, 9, 11, 67}},
               [](const Tensors& t) { return global_average_pool2d(t[0]); });
  programs.add("wide batch normalisation", {{17, 13, 11, 37}, {37}, {37}},
               [](const Tensors& t) { return batch_norm_training(t[0], t[1], t[2], 1e-3).y; });
  programs.add("wide layer normalisation", {{65, 33, 40}, {40}, {40}},
               [](const Tensors& t) { return layer_norm(t[0], t[1], t[2]); });
  programs.add("wide group normalisation", {{5, 9, 7, 48}, {48}, {48}},
               [](const Tensors& t) { return group_norm(t[0], t[1], t[2], {.groups = 6}); });
  programs.add("wide local response", {{3, 9, 11, 33}},
               [](const Tensors& t) { return local_response_normalization(t[0]); });
}

void add_moves(Programs& programs) {
  programs.add("wide transposes", {{65, 33, 17}}, [](const Tensors& t) {
    return transpose(t[0], {2, 0, 1}) + transpose(transpose(t[0], {1, 0, 2}), {2, 1, 0});
  });
  programs.add("wide slices and pads", {{65, 33, 17}}, [](const Tensors& t) {
    return pad(slice(t[0], {1, 2, 3}, {60, 30, 13}), {2, 0, 1}, {0, 3, 2}, 0.5);
  });
  programs.add("wide concat", {{65, 33}, {65, 7}, {65, 120}}, [](const Tensors& t) {
    return concat({t[0], t[1], t[2]}, 1);
  });
  programs.add("wide gather", {{517, 65}},
               [](const Tensors& t) { return gather(t[0], class_numbers(999, 517)); });
  programs.add("wide scatter", {{999, 65}}, [](const Tensors& t) {
    return scatter_rows(t[0], class_numbers(999, 517), {517, 65});
  });
  programs.add("wide upsampling", {{2, 17, 13, 5}}, [](const Tensors& t) {
    return upsample2d(t[0], {2, 3, Interpolation::kBilinear}) +
           upsample2d(t[0], {2, 3, Interpolation::kNearest});
  });
}

}  // namespace

std::vector<Program> wide_programs(DType dtype) {
  Programs programs(dtype);
  add_elementwise(programs);
  add_reductions(programs);
  add_networks(programs);
  add_moves(programs);
  return programs.take();
}

std::vector<Program> plain_programs(DType dtype) {
  Programs programs(dtype);
  using Binary = Tensor (*)(const Operand&, const Operand&);
  const Binary binary[] = {equal,       not_equal,  less, less_equal, greater,      greater_equal,
                           logical_and, logical_or, add,  subtract,   multiply,     maximum,
                           minimum,     divide,     pow,  add_relu,   floor_divide, floor_mod};
  for (const Binary function : binary) {
    programs.add(
        "two numbers", {{5, 33}, {33}},
        [function](const Tensors& t) { return function(t[0], t[1]); }, 1.0, 5.0);
  }
  using Unary = Tensor (*)(const Operand&);
  for (const Unary function :
       {Unary{logical_not}, Unary{sign}, Unary{abs}, Unary{negate}, Unary{square}, Unary{relu},
        Unary{stop_gradient}, Unary{floor}, Unary{ceil}, Unary{round}}) {
    programs.add(
        "one number", {{67}}, [function](const Tensors& t) { return function(t[0]); }, 0.0, 5.0);
  }
  programs.add(
      "clip", {{67}}, [](const Tensors& t) { return clip(t[0], 1.0, 3.0); }, 0.0, 5.0);
  programs.add("labels of int32", {{7, 5}}, [](const Tensors& t) {
    return sparse_softmax_cross_entropy(cast(class_numbers(7, 5), DType::kInt32), t[0]);
  });
  for (const DType to : kAllDTypes) {
    programs.add(
        concat("cast to ", to), {{67}}, [to](const Tensors& t) { return cast(t[0], to); }, 0.0,
        5.0);
  }
  using Reduce = Tensor (*)(const Operand&, ReduceOptions);
  for (const Reduce reduce :
       {reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_product, reduce_any, reduce_all}) {
    programs.add(
        "reduction", {{5, 7}},
        [reduce](const Tensors& t) {
          return reduce(t[0], {{1}, false});
        },
        0.0, 3.0);
  }
  programs.add(
      "argmax", {{9, 33}}, [](const Tensors& t) { return argmax(t[0], 1); }, 0.0, 60.0);
  programs.add(
      "argmin", {{9, 33}}, [](const Tensors& t) { return argmin(t[0], 0); }, 0.0, 60.0);
  programs.add(
      "largest", {{4, 9}}, [](const Tensors& t) { return top_k(t[0], 3).indices; }, 0.0, 60.0);
  programs.add(
      "one_hot", {{9}}, [dtype](const Tensors& t) { return one_hot(t[0], 5, dtype); }, 0.0, 4.0);
  programs.add("one_hot as this type", {{2}},
               [dtype](const Tensors&) { return one_hot(class_numbers(7, 5), 5, dtype); });
  programs.add(
      "where", {{5, 7}, {7}},
      [](const Tensors& t) {
        return where(greater(class_numbers(7, 5), Tensor::scalar(2, DType::kInt64)), t[0], t[1]);
      },
      0.0, 5.0);
  programs.add(
      "moves", {{5, 7, 3}},
      [](const Tensors& t) {
        const Tensor x = reverse(transpose(pad(t[0], {1, 0, 2}, {0, 1, 0}, 1.0)), {0, 2});
        return concat(
            {x, broadcast_to(slice(x, {0, 1, 2}, {5, 1, 4}), {5, 3, 4}).detached_rows(0, 5)}, 1);
      },
      0.0, 5.0);
  programs.add("reshape", {{6, 4}}, [](const Tensors& t) { return reshape(t[0], {3, 8}); });
  programs.add(
      "concat of rows", {{6, 4}, {2, 4}},
      [](const Tensors& t) {
        return concat({t[0], t[1]}, 0);
      },
      0.0, 5.0);
  programs.add(
      "running sum", {{6, 4}}, [](const Tensors& t) { return cumulative_sum(t[0]); }, 0.0, 3.0);
  programs.add(
      "gather", {{6, 4}},
      [](const Tensors& t) { return gather(t[0], cast(class_numbers(9, 6), DType::kInt32)); }, 0.0,
      5.0);
  programs.add(
      "scatter", {{7, 4}},
      [](const Tensors& t) {
        return scatter_rows(t[0], class_numbers(7, 5), {5, 4});
      },
      0.0, 5.0);
  programs.add("no rows", {{0, 4}, {4}}, [](const Tensors& t) { return t[0] + t[1]; });
  return programs.take();
}

}  // namespace tutti::device_check
