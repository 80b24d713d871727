// Table of operations: every operation with every type, and with shapes at which kernels take
// different paths (one element, a full block, a block and a remainder, empty).
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tensor/kernel_table.h"
#include "tests/tensor/random_values.h"

namespace tutti::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};
constexpr DType kIndices[] = {DType::kInt32, DType::kInt64};
constexpr FusedActivation kActivations[] = {FusedActivation::kNone, FusedActivation::kRelu,
                                            FusedActivation::kSigmoid, FusedActivation::kTanh};

/// List of cases; skips cases without a reference kernel.
class Cases {
 public:
  void add(OpId op, std::vector<Tensor> inputs, std::vector<TensorSpec> outputs,
           Attributes attributes = {}, double ulps = 0.0) {
    if (!reference_has(op, inputs[0].dtype())) return;
    OpCase c;
    c.call.op = op;
    c.call.inputs = std::move(inputs);
    c.call.outputs = std::move(outputs);
    c.call.attributes = std::move(attributes);
    c.ulps = ulps;
    cases_.push_back(std::move(c));
  }
  /// Same as add(), but for inputs with NaN, infinities, or the smallest or largest numbers.
  void add_special(OpId op, std::vector<Tensor> inputs, std::vector<TensorSpec> outputs,
                   Attributes attributes = {}, double ulps = 1.0) {
    const std::size_t before = cases_.size();
    add(op, std::move(inputs), std::move(outputs), std::move(attributes), ulps);
    if (cases_.size() > before) cases_.back().has_special_numbers = true;
  }
  /// Returns the reference kernels' results for the case that was added last.
  std::vector<Tensor> results() const {
    return run_kernel(reference_kernels(), cases_.back().call);
  }
  std::vector<OpCase> take() { return std::move(cases_); }

 private:
  std::vector<OpCase> cases_;
};

std::vector<OpId> ops_between(OpId first, OpId last) {
  std::vector<OpId> ops;
  for (int op = static_cast<int>(first); op <= static_cast<int>(last); ++op) {
    ops.push_back(static_cast<OpId>(op));
  }
  return ops;
}

Tensor numbers(const Shape& shape, DType dtype, std::uint64_t seed = 1) {
  return random_values(shape, dtype, -1, 1, seed);
}

/// Returns the tolerance, in ulps, for a sum of `count` numbers in any order.
double ulps_of_sum(std::int64_t count) {
  return 16.0 * std::sqrt(1.0 + static_cast<double>(count));
}

// --- Elementwise operations.

std::vector<OpCase> unary_cases() {
  Cases cases;
  const std::vector<double> special{kNan, kInf, -kInf, 0.0, -0.0, 1e-40, -1e-40, 2.5, -0.5, 100};
  for (const OpId op : ops_between(OpId::kNegate, OpId::kLogicalNot)) {
    for (const DType dtype : kAllDTypes) {
      for (const std::int64_t size : {0, 1, 7, 8, 33, 1027}) {
        cases.add(op, {random_values({size}, dtype, -4, 4)}, {{{size}, dtype}});
      }
    }
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
      cases.add_special(op, {tensor_of({10}, special, dtype)}, {{{10}, dtype}});
    }
  }
  return cases.take();
}

std::vector<OpCase> conversion_cases() {
  Cases cases;
  const std::vector<double> edges{
      0.0,     -0.0, 0.49,          -0.51,   1.0,   254.9,        256.0,
      -1.0,    3e9,  -3e9,          1e19,    -1e19, kInf,         -kInf,
      70000.0, 1e-6, 1.0 + 0x1p-11, 65519.9, 1e-7,  2.0 + 0x1p-8, 1.0 + 3 * 0x1p-11,
      kNan};
  const auto num_edges = static_cast<std::int64_t>(edges.size());
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      for (const std::int64_t size : {0, 1, 1030}) {
        cases.add(OpId::kCast, {random_values({size}, from, -500, 500)}, {{{size}, to}},
                  CastAttributes{to});
      }
      if (!is_floating(from)) continue;
      cases.add_special(OpId::kCast, {tensor_of({num_edges}, edges, from)}, {{{num_edges}, to}},
                        CastAttributes{to}, 0.0);
    }
    for (const auto& [low, high] : {std::pair{-1.5, 2.5}, {0.0, 1e30}, {-1e30, 0.3}}) {
      cases.add(OpId::kClip, {random_values({102}, from, -4, 4)}, {{{102}, from}},
                ClipAttributes{low, high});
    }
    for (const std::int64_t size : {1, 5, 64, 1030}) {
      cases.add(OpId::kDropout, {random_values({size}, from, -4, 4)}, {{{size}, from}},
                DropoutAttributes{0.3, RandomKey{17, kDropoutPurpose, 3, 2, 1}});
    }
  }
  return cases.take();
}

const std::pair<Shape, Shape> kBroadcasts[] = {{{1027}, {1027}},
                                               {{33}, {}},
                                               {{}, {33}},
                                               {{9, 16}, {16}},
                                               {{16}, {9, 16}},
                                               {{9, 16}, {9, 1}},
                                               {{9, 17}, {17}},
                                               {{9, 1}, {9, 17}},
                                               {{9, 1}, {1, 17}},
                                               {{3, 1, 5}, {4, 1}},
                                               {{1}, {1, 1}},
                                               {{4, 4, 1}, {4, 4, 4}},
                                               {{2, 3, 4, 5}, {3, 1, 5}},
                                               {{}, {}},
                                               {{0, 3}, {3}},
                                               {{4, 0}, {4, 1}},
                                               {{2, 6, 16}, {2, 1, 16}},
                                               {{2, 1, 8}, {1, 5, 8}},
                                               {{2, 1, 3, 1, 4}, {5, 1, 2, 4}}};

bool gives_bool(OpId op) { return op >= OpId::kEqual && op <= OpId::kLogicalOr; }

std::vector<OpCase> binary_cases() {
  Cases cases;
  const std::vector<double> special{kNan,  kInf, -kInf,  0.0,    -0.0, 1e-7,
                                    -1e-7, 1.0,  -65504, 1.0625, -1.0, 6e-40};
  for (const OpId op : ops_between(OpId::kAdd, OpId::kGeluTanhGrad)) {
    for (const DType dtype : kAllDTypes) {
      const DType result = gives_bool(op) ? DType::kBool : dtype;
      for (const auto& [a, b] : kBroadcasts) {
        cases.add(op, {random_values(a, dtype, -3, 3), random_values(b, dtype, -3, 3, 2)},
                  {{broadcast(a, b, "op_cases"), result}});
      }
      if (!is_floating(dtype) || op > OpId::kLogicalOr) continue;
      cases.add_special(op,
                        {tensor_of({12, 1}, special, dtype), tensor_of({1, 12}, special, dtype)},
                        {{{12, 12}, result}});
    }
  }
  for (const OpId op : {OpId::kAdd, OpId::kMultiply, OpId::kFloorDivide, OpId::kFloorMod}) {
    const auto lowest = std::numeric_limits<std::int64_t>::min();
    const Tensor extremes = Tensor::from<std::int64_t>({3}, {lowest, lowest + 1, -1 - lowest});
    cases.add(op, {extremes, Tensor::from<std::int64_t>({}, {-1})}, {{{3}, DType::kInt64}});
    cases.add(op,
              {Tensor::from<std::int32_t>({2}, {-2147483648, 2147483647}),
               Tensor::from<std::int32_t>({2, 1}, {-1, 10})},
              {{{2, 2}, DType::kInt32}});
  }
  return cases.take();
}

std::vector<OpCase> choice_cases() {
  Cases cases;
  const Shape shapes[] = {{6, 40}, {40}, {6, 1}, {}};
  for (const DType dtype : kAllDTypes) {
    for (const Shape& condition : shapes) {
      for (const Shape& a : shapes) {
        for (const Shape& b : shapes) {
          const Shape shape = broadcast(condition, broadcast(a, b, "op_cases"), "op_cases");
          cases.add(OpId::kWhere,
                    {random_values(condition, DType::kBool, 0, 1), random_values(a, dtype, 0, 9, 2),
                     random_values(b, dtype, 0, 9, 3)},
                    {{shape, dtype}});
        }
      }
    }
    cases.add(
        OpId::kWhere,
        {Tensor::zeros({0, 2}, DType::kBool), Tensor::zeros({2}, dtype), Tensor::ones({}, dtype)},
        {{{0, 2}, dtype}});
  }
  return cases.take();
}

// --- Reductions.

Shape with_ones(Shape shape, std::uint32_t axes) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axes >> axis & 1u) shape = shape.with_dim(axis, 1);
  }
  return shape;
}

std::vector<OpCase> reduction_cases() {
  Cases cases;
  // Sizes are close to those at which the CPU's order of additions changes: lanes (16), tile (64),
  // block (1024). GPUs sum 300 rows, or a row of more than 2 * 8192 elements, in parts.
  const std::vector<Shape> of_floats{{},           {1},         {15},         {17},
                                     {1023},       {1025},      {3, 1, 70},   {40, 65},
                                     {2, 1030, 3}, {2, 3, 130}, {2, 3, 4, 5}, {2, 2, 2, 3, 2},
                                     {0, 3},       {3, 0},      {300, 66},    {16'390}};
  const std::vector<Shape> of_others{{}, {17}, {1025}, {9, 65}, {2, 3, 4, 5}, {0, 3}, {130, 33}};
  for (const OpId op : ops_between(OpId::kReduceSum, OpId::kReduceAll)) {
    const double low = op == OpId::kReduceProduct ? -1.1 : -9.0;
    for (const DType dtype : kAllDTypes) {
      for (const Shape& shape : dtype == DType::kFloat32 ? of_floats : of_others) {
        const Tensor x = random_values(shape, dtype, low, 1.1);
        for (std::uint32_t axes = 0; axes < 1u << shape.rank(); ++axes) {
          if (shape.rank() > 3 && axes % 3 == 1) continue;
          cases.add(op, {x}, {{with_ones(shape, axes), dtype}}, AxesAttributes{axes, true},
                    ulps_of_sum(shape.num_elements()));
        }
      }
    }
  }
  const Tensor line = random_values({16'390}, DType::kFloat32, 0, 9);
  const Tensor x =
      tensor_of({4, 3}, {1, kNan, 2, kNan, 5, 6, 3, 3, kNan, kNan, kNan, kNan}, DType::kFloat32);
  for (const OpId op : {OpId::kReduceMax, OpId::kReduceMin, OpId::kReduceSum}) {
    for (const std::uint32_t axes : {1u, 2u, 3u}) {
      cases.add_special(op, {x}, {{with_ones(x.shape(), axes), DType::kFloat32}},
                        AxesAttributes{axes, true});
    }
  }
  for (const OpId op : {OpId::kArgMax, OpId::kArgMin}) {
    cases.add(op, {line}, {{Shape{}, DType::kInt64}}, AxisAttributes{0});
    for (const int axis : {0, 1}) {
      cases.add_special(op, {x}, {{x.shape().without_axis(axis), DType::kInt64}},
                        AxisAttributes{axis});
    }
    for (const DType dtype : kAllDTypes) {
      for (const Shape& shape : {Shape{1}, Shape{50}, Shape{4, 1, 9}, Shape{3, 20, 9}}) {
        const Tensor many_equals =
            random_values(shape, is_floating(dtype) ? DType::kInt32 : dtype, 0, 9);
        for (int axis = 0; axis < shape.rank(); ++axis) {
          cases.add(op, {tensor_of(shape, many_equals.to_doubles(), dtype)},
                    {{shape.without_axis(axis), DType::kInt64}}, AxisAttributes{axis});
        }
      }
    }
  }
  return cases.take();
}

std::vector<OpCase> scan_cases() {
  Cases cases;
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{1}, Shape{700}, Shape{3, 70}, Shape{5, 6, 4}, Shape{2, 0}}) {
      const Tensor x = random_values(shape, dtype, -3, 9);
      for (int axis = 0; axis < shape.rank(); ++axis) {
        for (const int flags : {0, 1, 2, 3}) {
          cases.add(OpId::kCumulativeSum, {x}, {{shape, dtype}},
                    CumulativeSumAttributes{axis, (flags & 1) != 0, (flags & 2) != 0},
                    dtype == DType::kFloat64 ? 700.0 : 4.0);  // float32 values are added as double
        }
      }
    }
    for (const auto& [shape, k] :
         {std::pair<Shape, std::int64_t>{{1}, 1}, {{4, 9}, 9}, {{3, 700}, 5}, {{0, 4}, 2}}) {
      const Shape best = shape.with_dim(-1, k);
      cases.add(OpId::kTopK, {random_values(shape, dtype, 0, 9)},
                {{best, dtype}, {best, DType::kInt64}});
    }
  }
  cases.add_special(OpId::kTopK, {tensor_of({6}, {1, kNan, 7, kNan, 7, -1}, DType::kFloat32)},
                    {{{5}, DType::kFloat32}, {{5}, DType::kInt64}});
  return cases.take();
}

// --- Products and convolutions.

struct Product {
  Shape a, b, c;
  bool transpose_a = false, transpose_b = false, sum_over_batch = false;
};

std::vector<OpCase> product_cases() {
  Cases cases;
  const std::vector<Product> products{{{3, 5}, {5, 7}, {3, 7}},
                                      {{1, 1}, {1, 1}, {1, 1}},
                                      {{8, 70}, {70, 16}, {8, 16}},  // long sums, computed in parts
                                      {{17, 9}, {9, 33}, {17, 33}},
                                      {{3, 1600}, {1600, 5}, {3, 5}},
                                      {{1600, 17}, {1600, 64}, {17, 64}, true, false},
                                      {{17, 1600}, {64, 1600}, {17, 64}, false, true},
                                      {{1600, 17}, {64, 1600}, {17, 64}, true, true},
                                      {{5, 3}, {5, 7}, {3, 7}, true, false},
                                      {{3, 5}, {7, 5}, {3, 7}, false, true},
                                      {{5, 3}, {7, 5}, {3, 7}, true, true},
                                      {{4, 3, 5}, {4, 5, 2}, {4, 3, 2}},
                                      {{2, 3, 4, 5}, {2, 3, 5, 2}, {2, 3, 4, 2}},
                                      {{4, 3, 5}, {5, 2}, {4, 3, 2}},
                                      {{4, 5, 3}, {5, 2}, {4, 3, 2}, true, false},
                                      {{3, 5}, {4, 5, 2}, {4, 3, 2}},
                                      {{3, 5}, {4, 2, 5}, {4, 3, 2}, false, true},
                                      {{0, 5}, {5, 7}, {0, 7}},
                                      {{3, 0}, {0, 7}, {3, 7}},
                                      {{0, 3}, {0, 7}, {3, 7}, true, false},
                                      {{2, 3, 0}, {2, 0, 4}, {2, 3, 4}},
                                      {{3, 70, 5}, {3, 70, 16}, {5, 16}, true, false, true},
                                      {{2, 3, 4, 5}, {2, 3, 4, 7}, {5, 7}, true, false, true},
                                      {{2, 0, 3}, {2, 0, 4}, {3, 4}, true, false, true}};
  for (const DType dtype : kFloats) {
    for (const Product& p : products) {
      if (p.sum_over_batch) {
        const std::int64_t sums = p.a.num_elements() / p.a.dim(-1);
        cases.add(OpId::kMatMul, {numbers(p.a, dtype, 1), numbers(p.b, dtype, 2)}, {{p.c, dtype}},
                  MatMulAttributes{.transpose_a = true, .sum_over_batch = true}, ulps_of_sum(sums));
        continue;
      }
      const std::int64_t sums = p.a.dim(p.transpose_a ? -2 : -1);
      for (const FusedActivation activation : kActivations) {
        for (const bool with_bias : {false, true}) {
          std::vector<Tensor> inputs{numbers(p.a, dtype, 1), numbers(p.b, dtype, 2)};
          if (with_bias) inputs.push_back(numbers({p.c.dim(-1)}, dtype, 3));
          cases.add(OpId::kMatMul, inputs, {{p.c, dtype}},
                    MatMulAttributes{p.transpose_a, p.transpose_b, activation}, ulps_of_sum(sums));
        }
      }
    }
    for (const FusedActivation activation : kActivations) {
      cases.add_special(OpId::kMatMul,
                        {tensor_of({2, 1}, {kNan, -1}, dtype), Tensor::ones({1, 8}, dtype),
                         Tensor::full({8}, 0.5, dtype)},
                        {{{2, 8}, dtype}}, MatMulAttributes{false, false, activation}, 8.0);
    }
  }
  return cases.take();
}

struct Convolution {
  Shape x, filter;  // NHWC, HWIO
  Conv2dAttributes attributes;
};

Conv2dAttributes strided(std::int64_t stride, std::array<std::int64_t, 4> pads,
                         std::int64_t dilation = 1, std::int64_t groups = 1) {
  return {stride,   stride,   pads[0], pads[1], pads[2], pads[3], FusedActivation::kNone,
          dilation, dilation, groups};
}

/// Returns the number of positions of a window along an axis.
std::int64_t positions(std::int64_t extent, std::int64_t pads, std::int64_t window,
                       std::int64_t stride) {
  return (extent + pads - window) / stride + 1;
}

Shape result_of(const Convolution& c) {
  const Conv2dAttributes& a = c.attributes;
  return {
      c.x[0],
      positions(c.x[1], a.pad_top + a.pad_bottom, (c.filter[0] - 1) * a.dilation_h + 1, a.stride_h),
      positions(c.x[2], a.pad_left + a.pad_right, (c.filter[1] - 1) * a.dilation_w + 1, a.stride_w),
      c.filter[3]};
}

const std::vector<Convolution>& convolutions() {
  static const std::vector<Convolution> list{
      {{2, 5, 6, 3}, {3, 3, 3, 4}, strided(1, {0, 0, 0, 0})},
      {{2, 5, 6, 3}, {3, 3, 3, 4}, strided(1, {1, 1, 1, 1})},
      {{2, 6, 8, 2}, {3, 3, 2, 4}, strided(2, {0, 1, 0, 1})},  // uneven pads
      {{1, 12, 14, 3}, {7, 7, 3, 8}, strided(2, {2, 3, 2, 3})},
      {{2, 7, 4, 2}, {1, 3, 2, 5}, {2, 1, 0, 0, 1, 1}},  // rows and columns differ
      {{2, 7, 4, 2}, {3, 2, 2, 17}, {1, 3, 2, 2, 1, 1}},
      {{2, 4, 3, 5}, {1, 1, 5, 7}, strided(1, {0, 0, 0, 0})},  // a filter of one pixel
      {{2, 5, 5, 4}, {1, 1, 4, 3}, strided(2, {0, 0, 0, 0})},
      {{1, 8, 8, 3}, {2, 2, 3, 8}, strided(3, {0, 0, 0, 0})},     // gaps between windows
      {{1, 3, 3, 2}, {5, 5, 2, 4}, strided(1, {2, 2, 2, 2})},     // a window larger than the image
      {{1, 9, 9, 2}, {3, 3, 2, 3}, strided(1, {2, 2, 2, 2}, 2)},  // dilated
      {{1, 9, 8, 3}, {3, 3, 1, 6}, strided(1, {2, 2, 2, 2}, 2, 3)},
      {{1, 9, 9, 16}, {3, 2, 16, 16}, {1, 1, 1, 1, 1, 2, FusedActivation::kNone, 1, 3, 1}},
      {{2, 5, 5, 6}, {3, 3, 2, 9}, strided(1, {1, 1, 1, 1}, 1, 3)},
      {{2, 5, 5, 4}, {3, 3, 1, 8}, strided(2, {1, 1, 1, 1}, 1, 4)},  // depthwise
      {{1, 6, 6, 32}, {5, 5, 1, 32}, strided(1, {2, 2, 2, 2}, 1, 32)},
      {{2, 3, 3, 4}, {1, 1, 2, 6}, strided(1, {0, 0, 0, 0}, 1, 2)},
      {{2, 4, 4, 3}, {3, 3, 3, 1}, strided(1, {1, 1, 1, 1})},
      {{1, 5, 5, 40}, {3, 3, 40, 35}, strided(1, {1, 1, 1, 1})},
      {{1, 6, 6, 32}, {3, 3, 32, 64}, strided(1, {0, 0, 0, 0})},  // full blocks of channels
      {{2, 8, 8, 16}, {2, 2, 16, 16}, strided(2, {0, 0, 0, 0})},
      {{1, 9, 8, 1}, {3, 3, 1, 32}, strided(1, {0, 0, 0, 0})},
      {{3, 9, 7, 3}, {5, 5, 3, 17}, strided(2, {0, 0, 0, 0})},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, strided(1, {0, 0, 0, 0})},
      {{0, 5, 6, 3}, {3, 3, 3, 4}, strided(1, {1, 1, 1, 1})},
      {{0, 5, 6, 3}, {1, 1, 3, 4}, strided(1, {0, 0, 0, 0})},
      {{2, 4, 4, 0}, {3, 3, 0, 4}, strided(1, {1, 1, 1, 1})}};
  return list;
}

std::vector<OpCase> convolution_cases() {
  Cases cases;
  for (const DType dtype : kFloats) {
    for (const Convolution& c : convolutions()) {
      const Tensor x = numbers(c.x, dtype, 1), filter = numbers(c.filter, dtype, 2);
      const Tensor bias = numbers({c.filter[3]}, dtype, 3), dy = numbers(result_of(c), dtype, 4);
      const std::int64_t taps = c.filter[0] * c.filter[1];
      const double ulps = ulps_of_sum(taps * c.filter[2]);
      cases.add(OpId::kConv2d, {x, filter}, {{result_of(c), dtype}}, c.attributes, ulps);
      for (const FusedActivation activation : kActivations) {
        if (activation > FusedActivation::kRelu && c.x.num_elements() > 200) continue;
        Conv2dAttributes activated = c.attributes;
        activated.activation = activation;
        cases.add(OpId::kConv2d, {x, filter, bias}, {{result_of(c), dtype}}, activated, ulps);
      }
      cases.add(OpId::kConv2dBackwardInput, {dy, filter}, {{c.x, dtype}}, c.attributes,
                ulps_of_sum(taps * c.filter[3]));
      cases.add(OpId::kConv2dBackwardFilter, {x, dy}, {{c.filter, dtype}}, c.attributes,
                ulps_of_sum(dy.num_elements()));
    }
    for (const FusedActivation activation : kActivations) {
      Conv2dAttributes attributes;
      attributes.activation = activation;
      cases.add_special(OpId::kConv2d,
                        {Tensor::full({1, 4, 4, 3}, kNan, dtype), Tensor::ones({3, 3, 3, 8}, dtype),
                         Tensor::zeros({8}, dtype)},
                        {{{1, 2, 2, 8}, dtype}}, attributes);
    }
    for (const Shape& shape :
         {Shape{5}, Shape{2, 3, 4, 5}, Shape{7, 1}, Shape{3, 8}, Shape{1, 1}, Shape{300, 12},
          Shape{2000, 3}, Shape{0, 4}, Shape{3, 130}, Shape{30, 4, 2}}) {
      cases.add(OpId::kBiasGrad, {numbers(shape, dtype)}, {{{shape.dim(-1)}, dtype}}, {},
                ulps_of_sum(shape.num_elements()));
    }
  }
  return cases.take();
}

// --- Images.

struct Pooling {
  Shape x;
  Pool2dAttributes attributes;
};

std::vector<OpCase> pooling_cases() {
  Cases cases;
  const std::vector<Pooling> list{{{2, 4, 6, 3}, {2, 2, 2, 2}},
                                  {{2, 5, 7, 8}, {2, 2, 2, 2}},
                                  {{1, 6, 6, 4}, {3, 3, 2, 2, 0, 1, 0, 1}},  // overlapping windows
                                  {{2, 5, 4, 17}, {3, 3, 1, 1, 1, 1, 1, 1}},
                                  {{1, 8, 8, 33}, {4, 4, 4, 4}},
                                  {{1, 5, 5, 64}, {3, 3, 2, 2, 1, 1, 1, 1}},
                                  {{2, 7, 5, 3}, {3, 1, 2, 1}},
                                  {{1, 7, 7, 4}, {1, 1, 3, 3}},  // gaps between windows
                                  {{3, 5, 4, 4}, {5, 4, 1, 1}},  // one window covers the image
                                  {{1, 2, 3, 2}, {5, 5, 1, 1, 2, 2, 2, 2}},
                                  {{1, 1, 1, 1}, {1, 1, 1, 1}},
                                  {{0, 4, 4, 4}, {2, 2, 2, 2}}};
  for (const DType dtype : kFloats) {
    for (const Pooling& p : list) {
      const Pool2dAttributes& a = p.attributes;
      const Shape y{p.x[0], positions(p.x[1], a.pad_top + a.pad_bottom, a.window_h, a.stride_h),
                    positions(p.x[2], a.pad_left + a.pad_right, a.window_w, a.stride_w), p.x[3]};
      const Tensor dy = numbers(y, dtype, 2), x = random_values(p.x, dtype, -9, -1);
      const Tensor ties =
          tensor_of(p.x, random_values(p.x, DType::kInt32, 0, 4).to_doubles(), dtype);
      std::vector<double> holes = x.to_doubles();
      for (std::size_t i = 0; i < holes.size(); i += 5) holes[i] = kNan;
      const Tensor with_nan = tensor_of(p.x, holes, dtype);
      cases.add(OpId::kMaxPool, {x}, {{y, dtype}}, a);
      cases.add_special(OpId::kMaxPool, {with_nan}, {{y, dtype}}, a);
      for (const Tensor& from : {x, ties}) {
        cases.add(OpId::kMaxPoolGrad, {from, dy}, {{p.x, dtype}}, a, 16);
      }
      cases.add_special(OpId::kMaxPoolGrad, {with_nan, dy}, {{p.x, dtype}}, a, 16);
      cases.add(OpId::kAveragePool, {x}, {{y, dtype}}, a, 16);
      cases.add(OpId::kAveragePoolGrad, {dy}, {{p.x, dtype}}, a, 16);
    }
  }
  return cases.take();
}

std::vector<OpCase> resizing_cases() {
  Cases cases;
  for (const DType dtype : kFloats) {
    for (const Interpolation how : {Interpolation::kNearest, Interpolation::kBilinear}) {
      for (const auto& [h, w] : {std::pair{1, 1}, {2, 2}, {3, 1}, {2, 5}}) {
        for (const Shape& small : {Shape{2, 3, 4, 3}, Shape{1, 1, 1, 2}, Shape{1, 1, 5, 1},
                                   Shape{1, 2, 3, 16}, Shape{1, 2, 2, 37}, Shape{0, 3, 2, 3}}) {
          const Shape large{small[0], small[1] * h, small[2] * w, small[3]};
          const UpsampleAttributes attributes{h, w, how};
          cases.add(OpId::kUpsample, {numbers(small, dtype)}, {{large, dtype}}, attributes);
          cases.add(OpId::kUpsampleGrad, {numbers(large, dtype)}, {{small, dtype}}, attributes);
        }
      }
    }
  }
  return cases.take();
}

// --- Normalization.

/// Adds cases in which the mean of the values to be normalized is near `center`.
void add_batch_normalization(Cases& cases, const Shape& shape, DType dtype, DType parameters,
                             double center = 0.0) {
  const Shape channels{shape.dim(-1)};
  const Tensor x = random_values(shape, dtype, center - 2, center + 2),
               dy = numbers(shape, dtype, 2);
  const Tensor gamma = random_values(channels, parameters, 0.5, 1.5, 3);
  const Tensor beta = numbers(channels, parameters, 4);
  const Tensor mean = random_values(channels, parameters, center - 0.5, center + 0.5, 5);
  const Tensor variance = random_values(channels, parameters, 0.5, 2, 6);
  const TensorSpec of_x{shape, dtype}, of_channels{channels, parameters};
  const BatchNormAttributes attributes{1e-3};
  const double ulps = center == 0.0 ? 64 : 1000;
  cases.add(OpId::kBatchNormTraining, {x, gamma, beta}, {of_x, of_channels, of_channels},
            attributes, ulps);
  cases.add(OpId::kBatchNormInference, {x, gamma, beta, mean, variance}, {of_x}, attributes, ulps);
  cases.add(OpId::kBatchNormGrad, {x, gamma, mean, variance, dy}, {of_x, of_channels, of_channels},
            attributes, ulps_of_sum(shape.num_elements()));
}

struct Groups {
  std::int64_t batch, positions, groups, channels;  // `channels`: number of channels per group
};

void add_group_normalization(Cases& cases, const Groups& g, DType dtype) {
  const Shape shape{g.batch, g.positions, g.groups * g.channels};
  const Shape per_channel{g.groups * g.channels}, per_pair{g.batch, g.groups};
  const TensorSpec of_x{shape, dtype}, of_channels{per_channel, dtype}, of_pairs{per_pair, dtype};
  const GroupNormAttributes attributes{g.positions, g.groups, 1e-3};
  const Tensor x = random_values(shape, dtype, 1, 4);
  const Tensor gamma = random_values(per_channel, dtype, -1, 2, 2);
  cases.add(OpId::kGroupNorm, {x, gamma, numbers(per_channel, dtype, 3)},
            {of_x, of_pairs, of_pairs}, attributes, 100);
  cases.add(OpId::kGroupNormGrad,
            {numbers(shape, dtype, 5), gamma, random_values(per_pair, dtype, -0.1, 0.1, 6),
             random_values(per_pair, dtype, 0.5, 1, 7), numbers(shape, dtype, 4)},
            {of_x, of_channels, of_channels}, attributes, ulps_of_sum(shape.num_elements()));
}

std::vector<OpCase> normalization_cases() {
  Cases cases;
  for (const DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{2, 3, 4, 8}, Shape{5, 3}, Shape{1, 1}, Shape{1, 16}, Shape{300, 4}, Shape{1030, 1},
          Shape{2, 130}, Shape{40, 260}, Shape{3, 7, 5, 17}, Shape{0, 4}, Shape{6, 5, 12}}) {
      add_batch_normalization(cases, shape, dtype, dtype);
    }
    for (const Groups& g : {Groups{1, 1, 1, 1}, Groups{3, 1, 1, 17}, Groups{5, 1, 1, 64},
                            Groups{2, 6, 2, 5}, Groups{2, 12, 4, 8}, Groups{2, 40, 3, 4},
                            Groups{2, 1, 1, 1000}, Groups{3, 70, 35, 1}, Groups{0, 3, 2, 2}}) {
      add_group_normalization(cases, g, dtype);
    }
    for (const Shape& shape : {Shape{2, 1, 1, 1}, Shape{2, 3, 1, 3}, Shape{2, 2, 2, 16},
                               Shape{1, 3, 3, 40}, Shape{0, 2, 2, 3}}) {
      const Tensor x = random_values(shape, dtype, -2, 2), dy = numbers(shape, dtype, 2);
      for (const std::int64_t radius : {0, 1, 2, 5, 70}) {
        for (const double beta : {0.5, 0.75, 1.0, 0.6}) {
          const LrnAttributes attributes{radius, 1.5, 0.25, beta};
          cases.add(OpId::kLrn, {x}, {{shape, dtype}}, attributes, 16);
          cases.add(OpId::kLrnGrad, {x, dy}, {{shape, dtype}}, attributes, 32);
        }
      }
    }
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    add_batch_normalization(cases, {6, 5, 12}, dtype, DType::kFloat32);
  }
  add_batch_normalization(cases, {500, 4}, DType::kFloat32, DType::kFloat32, 1000.0);
  add_group_normalization(cases, {1200, 1, 1, 8},
                          DType::kFloat32);  // enough rows to be summed in parts
  return cases.take();
}

// --- Softmax and losses.

std::vector<OpCase> softmax_cases() {
  Cases cases;
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{7}, Shape{2, 3, 4}, Shape{70, 3},
                               Shape{2, 1000}, Shape{0, 4}}) {
      const Tensor x = random_values(shape, dtype, -5, 5), dy = numbers(shape, dtype, 2);
      cases.add(OpId::kSoftmax, {x}, {{shape, dtype}}, {}, 32);
      cases.add(OpId::kSoftmaxGrad, {cases.results()[0], dy}, {{shape, dtype}}, {}, 64);
      cases.add(OpId::kLogSoftmax, {x}, {{shape, dtype}}, {}, 32);
      cases.add(OpId::kLogSoftmaxGrad, {cases.results()[0], dy}, {{shape, dtype}}, {}, 64);
      cases.add(OpId::kSigmoidCrossEntropy,
                {random_values(shape, dtype, 0, 1, 3), random_values(shape, dtype, -30, 30, 4)},
                {{shape, dtype}});
      if (shape.rank() != 2) continue;
      const Shape rows{shape[0]};
      cases.add(OpId::kSoftmaxCrossEntropy, {random_values(shape, dtype, 0, 0.1, 5), x},
                {{rows, dtype}}, {}, 200);
      for (const DType index : kIndices) {
        const Tensor labels =
            random_values(rows, index, 0, static_cast<double>(shape[1]) - 0.01, 6);
        cases.add(OpId::kSparseSoftmaxCrossEntropy, {labels, x}, {{rows, dtype}}, {}, 50);
        cases.add(OpId::kSparseSoftmaxCrossEntropyGrad, {labels, x, numbers(rows, dtype, 7)},
                  {{shape, dtype}}, {}, 50);
      }
    }
    cases.add(OpId::kSoftmax, {Tensor::zeros({4, 0}, dtype)}, {{{4, 0}, dtype}});
    if (is_half(dtype)) continue;
    // Logits for which exp() overflows.
    const Tensor large = tensor_of({2, 3}, {1000, 0, -1000, -1000, 0, 1000}, dtype);
    cases.add(OpId::kSoftmax, {large}, {{{2, 3}, dtype}}, {}, 8);
    cases.add(OpId::kLogSoftmax, {large}, {{{2, 3}, dtype}}, {}, 8);
    const Tensor small = tensor_of({2, 3}, {1000, 999, -1000, -5000, -5000, -5001}, dtype);
    cases.add_special(OpId::kSparseSoftmaxCrossEntropy,
                      {tensor_of({2}, {1, 2}, DType::kInt32), small}, {{{2}, dtype}}, {}, 20);
    cases.add(OpId::kSigmoidCrossEntropy,
              {tensor_of({4}, {0, 1, 0, 1}, dtype), tensor_of({4}, {1e3, 1e3, -1e3, -1e3}, dtype)},
              {{{4}, dtype}});
  }
  return cases.take();
}

// --- Attention.

struct Heads {
  std::int64_t batch, heads, shared, steps, value_steps, features, length;
  bool is_causal = false;
  std::int64_t steps_before = 0;
};

void add_attention(Cases& cases, const Heads& h, DType dtype) {
  const double features = h.features == 0 ? 1.0 : static_cast<double>(h.features);
  const AttentionAttributes attributes{1.0 / std::sqrt(features), h.is_causal, h.steps_before};
  std::vector<Tensor> inputs{
      random_values({h.batch, h.heads, h.steps, h.features}, dtype, -3, 3, 1),
      random_values({h.batch, h.shared, h.value_steps, h.features}, dtype, -3, 3, 2),
      random_values({h.batch, h.shared, h.value_steps, h.length}, dtype, -1, 1, 3)};
  std::vector<TensorSpec> gradients;
  for (const Tensor& input : inputs) gradients.push_back({input.shape(), dtype});
  cases.add(OpId::kAttention, inputs,
            {{Shape{h.batch, h.heads, h.steps, h.length}, dtype},
             {Shape{h.batch, h.heads, h.steps}, is_half(dtype) ? DType::kFloat32 : dtype}},
            attributes, 100);
  const std::vector<Tensor> results = cases.results();
  inputs.insert(inputs.end(), results.begin(), results.end());
  inputs.push_back(numbers(results[0].shape(), dtype, 4));
  cases.add(OpId::kAttentionGrad, inputs, gradients, attributes, 400);
}

std::vector<OpCase> attention_cases() {
  Cases cases;
  const Heads in_every_type[] = {{1, 1, 1, 1, 1, 1, 1},
                                 {2, 3, 3, 5, 7, 4, 3},
                                 {2, 4, 2, 3, 5, 2, 3, true, 1},
                                 {2, 4, 2, 70, 70, 6, 6, true},
                                 {1, 2, 1, 3, 90, 20, 17}};
  for (const DType dtype : kFloats) {
    for (const Heads& h : in_every_type) add_attention(cases, h, dtype);
  }
  // Covers full and partial tiles of 64 and 128, steps with cached keys, keys shared by several
  // heads, wide heads, and empty inputs.
  for (const Heads& h :
       {Heads{1, 2, 2, 64, 64, 17, 9}, Heads{1, 2, 1, 64, 128, 8, 8, true},
        Heads{1, 1, 1, 65, 129, 8, 5}, Heads{1, 1, 1, 129, 63, 4, 4, true},
        Heads{1, 2, 1, 70, 170, 8, 8, true, 1}, Heads{1, 1, 1, 70, 170, 8, 8, true, 63},
        Heads{1, 1, 1, 70, 170, 8, 8, true, 64}, Heads{1, 1, 1, 70, 170, 8, 8, true, 150},
        Heads{1, 4, 2, 1, 260, 8, 8, true, 259}, Heads{1, 2, 2, 1, 65, 8, 8, true, 20},
        Heads{1, 6, 2, 66, 66, 8, 4, true}, Heads{1, 2, 1, 10, 12, 64, 128, true},
        Heads{1, 1, 1, 66, 65, 129, 130}, Heads{1, 2, 1, 130, 130, 0, 64, true},
        Heads{2, 2, 2, 3, 0, 4, 4}, Heads{0, 2, 2, 3, 4, 4, 4}, Heads{1, 2, 2, 0, 4, 4, 4},
        Heads{1, 2, 2, 3, 4, 4, 0}}) {
    add_attention(cases, h, DType::kFloat32);
  }
  add_attention(cases, {1, 8, 1, 10, 70, 8, 4}, DType::kFloat64);
  const std::vector<TensorSpec> outputs{{{1, 1, 3, 1}, DType::kFloat32},
                                        {{1, 1, 3}, DType::kFloat32}};
  const Shape shape{1, 1, 3, 1};
  const Tensor values = Tensor::from<float>(shape, {1, 2, 3});
  cases.add(OpId::kAttention,
            {Tensor::full(shape, 1e4), Tensor::from<float>(shape, {-1e3, 1e3, 9}), values}, outputs,
            AttentionAttributes{}, 10);
  cases.add_special(OpId::kAttention,
                    {values, Tensor::from<float>(shape, {1, 2, std::nanf("")}), values}, outputs,
                    AttentionAttributes{1.0, true}, 10);
  return cases.take();
}

// --- Operations that move elements.

std::vector<OpCase> transposition_cases() {
  Cases cases;
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{40, 33}, Shape{3, 35, 8}, Shape{2, 3, 1, 5},
                               Shape{2, 3, 2, 3, 2}, Shape{4, 0}, Shape{1, 64}}) {
      std::vector<std::int8_t> order(static_cast<std::size_t>(shape.rank()));
      std::iota(order.begin(), order.end(), std::int8_t{0});
      int number = 0;
      do {
        if (number++ % (shape.rank() > 4 ? 7 : 1) != 0) continue;
        TransposeAttributes attributes;
        std::copy(order.begin(), order.end(), attributes.permutation.begin());
        std::vector<std::int64_t> dims;
        for (const std::int8_t axis : order) dims.push_back(shape[axis]);
        cases.add(OpId::kTranspose, {random_values(shape, dtype, 0, 200)}, {{Shape(dims), dtype}},
                  attributes);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
  return cases.take();
}

std::vector<OpCase> shape_cases() {
  Cases cases;
  for (const DType dtype : kAllDTypes) {
    const auto some = [&](const Shape& shape) { return random_values(shape, dtype, 0, 200); };
    for (const Shape& begin : {Shape{0, 0, 0}, Shape{1, 2, 3}, Shape{0, 4, 8}}) {
      SliceAttributes slice;
      PadAttributes pad;
      std::copy(begin.begin(), begin.end(), slice.begin.begin());
      std::copy(begin.begin(), begin.end(), pad.before.begin());
      pad.value = 3;
      for (const Shape& part : {Shape{2, 4, 16}, Shape{2, 3, 5}, Shape{2, 0, 16}}) {
        cases.add(OpId::kSlice, {some({4, 9, 24})}, {{part, dtype}}, slice);
        cases.add(OpId::kPad, {some(part)}, {{{4, 9, 24}, dtype}}, pad);
      }
    }
    cases.add(OpId::kSlice, {some({4, 24})}, {{{4, 16}, dtype}}, SliceAttributes{{0, 5}});
    cases.add(OpId::kPad, {some({4, 16})}, {{{4, 24}, dtype}}, PadAttributes{{0, 5}, 3});
    for (const std::uint32_t axes : {0u, 1u, 2u, 4u, 5u, 7u}) {
      cases.add(OpId::kReverse, {some({3, 4, 9})}, {{{3, 4, 9}, dtype}}, AxesAttributes{axes});
    }
    for (const int axis : {0, 1, 2}) {
      std::vector<Tensor> parts;
      for (const std::int64_t size : {3, 0, 16, 1}) {
        parts.push_back(some(Shape{4, 5, 8}.with_dim(axis, size)));
      }
      cases.add(OpId::kConcat, parts, {{Shape{4, 5, 8}.with_dim(axis, 20), dtype}},
                AxisAttributes{axis});
    }
    for (const Shape& shape : {Shape{}, Shape{16}, Shape{6, 1}, Shape{3, 1, 16}, Shape{1, 1, 1}}) {
      cases.add(OpId::kBroadcastTo, {some(shape)}, {{{3, 6, 16}, dtype}});
    }
    for (const OpId op : {OpId::kReshape, OpId::kStopGradient}) {
      cases.add(op, {some({4, 6})}, {{op == OpId::kReshape ? Shape{8, 3} : Shape{4, 6}, dtype}});
    }
  }
  return cases.take();
}

std::vector<OpCase> indexing_cases() {
  Cases cases;
  for (const DType index : kIndices) {
    const Tensor classes = tensor_of({2, 4}, {0, 3, -1, 4, 2, 7, 1, 0}, index);  // some invalid
    const Tensor indices = random_values({50}, index, 0, 20);
    for (const DType dtype : kAllDTypes) {
      cases.add(OpId::kOneHot, {classes}, {{{2, 4, 4}, dtype}}, OneHotAttributes{5, 2});
      if (index == DType::kInt64 && dtype != DType::kFloat32) continue;
      for (const Shape& row : {Shape{}, Shape{1}, Shape{3}, Shape{16}, Shape{5, 12}}) {
        const Shape params = row.with_front(20), rows = row.with_front(50);
        cases.add(OpId::kGather, {random_values(params, dtype, 0, 200), indices}, {{rows, dtype}});
        cases.add(OpId::kGather, {random_values(params, dtype, 0, 200), Tensor::zeros({0}, index)},
                  {{row.with_front(0), dtype}});
        if (dtype == DType::kBool) continue;
        cases.add(OpId::kScatterRows, {random_values(rows, dtype, -3, 3), indices},
                  {{params, dtype}});
      }
    }
  }
  const auto add_scatter = [&](const Shape& values, const Tensor& indices, std::int64_t rows) {
    cases.add(OpId::kScatterRows, {numbers(values, DType::kFloat32), indices},
              {{values.with_dim(0, rows), DType::kFloat32}});
  };
  add_scatter({300, 2}, random_values({300}, DType::kInt32, 0, 100), 100);
  add_scatter({9, 300}, Tensor::full({9}, 2, DType::kInt32), 4);  // one row, many columns
  add_scatter({0, 2}, Tensor::zeros({0}, DType::kInt64), 2);
  return cases.take();
}

}  // namespace

const std::vector<OpFamily>& op_families() {
  static const std::vector<OpFamily> families{{"unary", unary_cases},
                                              {"conversions", conversion_cases},
                                              {"binary", binary_cases},
                                              {"choices", choice_cases},
                                              {"reductions", reduction_cases},
                                              {"scans", scan_cases},
                                              {"products", product_cases},
                                              {"convolutions", convolution_cases},
                                              {"pooling", pooling_cases},
                                              {"resizing", resizing_cases},
                                              {"normalization", normalization_cases},
                                              {"softmax", softmax_cases},
                                              {"attention", attention_cases},
                                              {"transpositions", transposition_cases},
                                              {"shapes", shape_cases},
                                              {"indexing", indexing_cases}};
  return families;
}

std::string OpCase::name() const {
  std::string text(to_string(call.op));
  for (const Tensor& input : call.inputs) text += concat(" ", input.dtype(), " ", input.shape());
  text += " ->";
  for (const TensorSpec& output : call.outputs) text += concat(" ", output.shape);
  return text;
}

bool reference_has(OpId op, DType dtype) {
  return reference_kernels().find(op, dtype) != nullptr ||
         (is_half(dtype) && reference_kernels().find(op, DType::kFloat32) != nullptr);
}

}  // namespace tutti::testing
