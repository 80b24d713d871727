// Each operation as XLA computes it beside the CPU's kernels, forward and backward.
// SPDX-License-Identifier: Apache-2.0
#include "tests/xla/xla_test_support.h"

namespace tutti {
namespace {

using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

/// The function's value, and the gradients of its weighted sum with respect to floating inputs.
std::vector<Tensor> value_and_gradients(const Function& function, const Inputs& inputs) {
  GradientTape tape;
  Inputs watched;
  for (const Tensor& input : inputs) {
    if (is_floating(input.dtype()) && input.dtype() != DType::kFloat64) {
      tape.watch(input);
      watched.push_back(input);
    }
  }
  const Tensor value = function(inputs);
  std::vector<Tensor> results = {value};
  if (!is_floating(value.dtype()) || watched.empty()) return results;
  const Tensor weights =
      reshape(cast(arange(value.num_elements()), value.dtype()) * 0.1 + 1.0, value.shape());
  for (const Gradient& gradient :
       tape.gradient(reduce_sum(value * weights), std::span<const Tensor>(watched))) {
    if (!gradient.is_none()) results.push_back(gradient.to_dense());
  }
  return results;
}

void expect_equal_on_xla(const char* name, const Function& function, const Inputs& inputs,
                         double tolerance = 2e-5) {
  SCOPED_TRACE(name);
  const std::vector<Tensor> expected = value_and_gradients(function, inputs);
  TpuStrategy strategy;
  std::vector<Tensor> got;
  strategy.run([&] { got = value_and_gradients(function, inputs); });
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].shape(), expected[i].shape());
    EXPECT_EQ(got[i].dtype(), expected[i].dtype());
    const std::vector<double> a = got[i].to_doubles(), b = expected[i].to_doubles();
    for (std::size_t k = 0; k < a.size(); ++k) {
      if (std::isnan(b[k])) {
        EXPECT_TRUE(std::isnan(a[k])) << "result " << i << ", element " << k << ": " << a[k];
      } else {
        EXPECT_NEAR(a[k], b[k], tolerance * std::max(1.0, std::abs(b[k])))
            << "result " << i << ", element " << k;
      }
    }
  }
}

Tensor numbers(const Shape& shape, std::uint64_t seed = 1) {
  return random_normal(shape, RandomKey{seed});
}
Tensor positive(const Shape& shape) { return exp(numbers(shape, 5)); }

TEST(XlaOperations, OfOneInput) {
  const Inputs x = {numbers({3, 5})}, p = {positive({3, 5})};
  const auto one = [&](const char* name, Tensor (*op)(const Operand&), const Inputs& in) {
    expect_equal_on_xla(
        name, [op](const Inputs& given) { return op(given[0]); }, in);
  };
  one("negate", negate, x);
  one("exp", exp, x);
  one("log", log, p);
  one("sqrt", sqrt, p);
  one("rsqrt", rsqrt, p);
  one("square", square, x);
  one("abs", abs, x);
  one("sign", sign, x);
  one("reciprocal", reciprocal, p);
  one("floor", floor, x);
  one("ceil", ceil, x);
  one("round", round, x);
  one("erf", erf, x);
  one("log1p", log1p, p);
  one("expm1", expm1, x);
  one("sin", sin, x);
  one("cos", cos, x);
  one("relu", relu, x);
  one("sigmoid", sigmoid, x);
  one("tanh", tanh, x);
  one("softplus", softplus, x);
  one("elu", elu, x);
  one("gelu", gelu, x);
  one("gelu_tanh", gelu_tanh, x);
  one("softmax", softmax, x);
  one("log_softmax", log_softmax, x);
  expect_equal_on_xla(
      "clip", [](const Inputs& in) { return clip(in[0], -0.5, 0.7); }, x);
  expect_equal_on_xla(
      "cast", [](const Inputs& in) { return cast(in[0] * 3.0, DType::kInt32); }, x);
  expect_equal_on_xla(
      "to bool", [](const Inputs& in) { return cast(floor(in[0]), DType::kBool); }, x);
}

TEST(XlaOperations, NanStaysNan) {
  const Inputs x = {Tensor::from<float>({4}, {std::nanf(""), -1.0f, 2.0f, 0.0f})};
  expect_equal_on_xla(
      "relu", [](const Inputs& in) { return relu(in[0]); }, x);
  expect_equal_on_xla(
      "maximum", [](const Inputs& in) { return maximum(in[0], 0.5); }, x);
  expect_equal_on_xla(
      "minimum", [](const Inputs& in) { return minimum(0.5, in[0]); }, x);
  expect_equal_on_xla(
      "max", [](const Inputs& in) { return reduce_max(stop_gradient(in[0])); }, x);
}

TEST(XlaOperations, OfTwoInputsThatBroadcast) {
  const Inputs in = {numbers({2, 3, 4}), positive({3, 1})};
  const auto two = [&](const char* name, Tensor (*op)(const Operand&, const Operand&)) {
    expect_equal_on_xla(
        name, [op](const Inputs& given) { return op(given[0], given[1]); }, in);
  };
  two("add", add);
  two("subtract", subtract);
  two("multiply", multiply);
  two("divide", divide);
  two("maximum", maximum);
  two("minimum", minimum);
  two("add_relu", add_relu);
  two("floor_divide", floor_divide);
  two("floor_mod", floor_mod);
  two("equal", equal);
  two("not_equal", not_equal);
  two("less", less);
  two("less_equal", less_equal);
  two("greater", greater);
  two("greater_equal", greater_equal);
  expect_equal_on_xla("pow", [](const Inputs& x) { return pow(x[0], 2.5); }, {positive({3})});
  expect_equal_on_xla(
      "where", [](const Inputs& x) { return where(greater(x[0], 0.0), x[0], x[1]); }, in);
  expect_equal_on_xla(
      "logic",
      [](const Inputs& x) {
        return logical_or(logical_not(less(x[0], 0.0)),
                          logical_and(less(x[1], 1.0), less(x[0], -1.0)));
      },
      in);
}

TEST(XlaOperations, Reductions) {
  const Inputs x = {numbers({2, 3, 4})};
  const auto reduced = [&](const char* name, const Function& function) {
    expect_equal_on_xla(name, function, x);
  };
  reduced("sum of all", [](const Inputs& in) { return reduce_sum(in[0]); });
  reduced("sum", [](const Inputs& in) { return reduce_sum(in[0], {{1}, true}); });
  reduced("mean", [](const Inputs& in) { return reduce_mean(in[0], {{0, 2}, false}); });
  reduced("max", [](const Inputs& in) { return reduce_max(in[0], {{2}, false}); });
  reduced("min", [](const Inputs& in) { return reduce_min(in[0], {{0}, true}); });
  reduced("product", [](const Inputs& in) { return reduce_product(in[0], {{1}, false}); });
  reduced("any", [](const Inputs& in) { return reduce_any(greater(in[0], 1.0), {{1}, false}); });
  reduced("all", [](const Inputs& in) { return reduce_all(less(in[0], 1.0), {{1}, false}); });
  reduced("argmax", [](const Inputs& in) { return argmax(in[0], 1); });
  reduced("argmin", [](const Inputs& in) { return argmin(in[0], 2); });
  reduced("top_k", [](const Inputs& in) { return top_k(in[0], 3).values; });
  reduced("places of top_k", [](const Inputs& in) { return top_k(in[0], 2).indices; });
  reduced("cumsum", [](const Inputs& in) { return cumulative_sum(in[0], {.axis = 1}); });
  reduced("cumsum from behind", [](const Inputs& in) {
    return cumulative_sum(in[0], {.axis = 2, .exclusive = true, .reverse = true});
  });
}

TEST(XlaOperations, Products) {
  const auto product = [](bool a, bool b) {
    return [a, b](const Inputs& in) {
      return matmul(in[0], in[1], {.transpose_a = a, .transpose_b = b});
    };
  };
  expect_equal_on_xla("a b", product(false, false), {numbers({4, 3}), numbers({3, 5}, 2)});
  expect_equal_on_xla("a^T b", product(true, false), {numbers({3, 4}), numbers({3, 5}, 2)});
  expect_equal_on_xla("a b^T", product(false, true), {numbers({4, 3}), numbers({5, 3}, 2)});
  expect_equal_on_xla("batches", product(false, true),
                      {numbers({2, 2, 4, 3}), numbers({2, 2, 5, 3}, 2)});
  expect_equal_on_xla("one b", product(false, false), {numbers({2, 4, 3}), numbers({3, 5}, 2)});
  expect_equal_on_xla("one a", product(false, false), {numbers({4, 3}), numbers({2, 3, 5}, 2)});
  expect_equal_on_xla(
      "dense", [](const Inputs& in) { return dense(in[0], in[1], in[2], FusedActivation::kRelu); },
      {numbers({4, 3}), numbers({3, 5}, 2), numbers({5}, 3)});
}

TEST(XlaOperations, Convolutions) {
  const auto convolution = [](Conv2dOptions options) {
    return [options](const Inputs& in) { return conv2d(in[0], in[1], options); };
  };
  const Inputs plain = {numbers({2, 7, 6, 4}), numbers({3, 3, 4, 6}, 2)};
  expect_equal_on_xla("valid", convolution({.padding = Padding::kValid}), plain, 1e-4);
  expect_equal_on_xla("same, strides",
                      convolution({.stride_h = 2, .stride_w = 2, .padding = Padding::kSame}), plain,
                      1e-4);
  expect_equal_on_xla("dilated",
                      convolution({.padding = Padding::kSame, .dilation_h = 2, .dilation_w = 2}),
                      plain, 1e-4);
  expect_equal_on_xla("groups",
                      convolution({.stride_h = 2, .padding = Padding::kSame, .groups = 2}),
                      {numbers({2, 7, 6, 4}), numbers({3, 3, 2, 6}, 2)}, 1e-4);
}

TEST(XlaOperations, Pooling) {
  const Inputs x = {numbers({2, 7, 6, 3})};
  const Pool2dOptions valid{.window_h = 2, .window_w = 2, .stride_h = 2, .stride_w = 2};
  const Pool2dOptions same{
      .window_h = 3, .window_w = 3, .stride_h = 2, .stride_w = 2, .padding = Padding::kSame};
  for (const Pool2dOptions& options : {valid, same}) {
    expect_equal_on_xla(
        "max", [&](const Inputs& in) { return max_pool2d(in[0], options); }, x);
    expect_equal_on_xla(
        "average", [&](const Inputs& in) { return average_pool2d(in[0], options); }, x);
  }
  // Of equal elements the first one has the gradient; NaN counts as largest.
  const Tensor ties = Tensor::from<float>({1, 4, 2, 1}, {1, 1, 1, 0, 2, std::nanf(""), 3, 1});
  const Tensor dy = Tensor::from<float>({1, 2, 1, 1}, {5, 7});
  expect_equal_on_xla(
      "ties", [&](const Inputs& in) { return max_pool2d_grad(stop_gradient(in[0]), dy, {}); },
      {ties});
  expect_equal_on_xla(
      "upsample",
      [](const Inputs& in) { return upsample2d(in[0], {.factor_h = 2, .factor_w = 3}); }, x);
}

TEST(XlaOperations, Losses) {
  const Tensor labels = Tensor::from<std::int32_t>({3}, {4, 0, 2});
  const Inputs logits = {numbers({3, 5})};
  expect_equal_on_xla(
      "sparse", [&](const Inputs& in) { return sparse_softmax_cross_entropy(labels, in[0]); },
      logits);
  expect_equal_on_xla(
      "dense labels",
      [&](const Inputs& in) { return softmax_cross_entropy(one_hot(labels, 5), in[0]); }, logits);
  expect_equal_on_xla(
      "sigmoid", [&](const Inputs& in) { return sigmoid_cross_entropy(one_hot(labels, 5), in[0]); },
      logits);
}

TEST(XlaOperations, Moves) {
  const Inputs x = {numbers({4, 3, 2})};
  const auto moved = [&](const char* name, const Function& function) {
    expect_equal_on_xla(name, function, x);
  };
  moved("reshape", [](const Inputs& in) { return reshape(in[0], {6, 4}) * 2.0; });
  moved("transpose", [](const Inputs& in) { return transpose(in[0], {2, 0, 1}); });
  moved("rows", [](const Inputs& in) { return slice(in[0] * 2.0, {1, 0, 0}, {2, 3, 2}); });
  moved("block", [](const Inputs& in) { return slice(in[0] * 2.0, {1, 1, 0}, {2, 2, 1}); });
  moved("pad", [](const Inputs& in) { return pad(in[0], {1, 0, 2}, {0, 1, 0}, -1.0); });
  moved("concat", [](const Inputs& in) { return concat({in[0], square(in[0])}, 1); });
  moved("broadcast", [](const Inputs& in) {
    return broadcast_to(reduce_sum(in[0], {{1}, true}), {4, 3, 2});
  });
  moved("reverse", [](const Inputs& in) { return reverse(in[0], {1}); });
  moved("gather", [](const Inputs& in) {
    return gather(in[0], Tensor::from<std::int64_t>({2, 2}, {3, 0, 0, 1}));
  });
}

TEST(XlaOperations, Normalisations) {
  expect_equal_on_xla(
      "batch", [](const Inputs& in) { return batch_norm_training(in[0], in[1], in[2], 1e-3).y; },
      {numbers({4, 3, 5}), numbers({5}, 2), numbers({5}, 3)}, 1e-4);
  expect_equal_on_xla(
      "layer", [](const Inputs& in) { return layer_norm(in[0], in[1], in[2]); },
      {numbers({4, 6}), numbers({6}, 2), numbers({6}, 3)}, 1e-4);
}

TEST(XlaOperations, SixteenBitsAreRoundedAsOnTheCpu) {
  expect_equal_on_xla("bfloat16",
                      [](const Inputs& in) {
                        const Tensor half = cast(in[0], DType::kBFloat16);
                        return cast(half * half + half, DType::kFloat32);
                      },
                      {numbers({3, 5})});
}

}  // namespace
}  // namespace tutti
