// Checks operation calls: computes the shapes and types of the outputs from the inputs.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/op_call_check.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tensor/op_checks.h"

namespace tutti::internal {
namespace {

using Specs = std::vector<TensorSpec>;

/// Checks of one call; each function throws unless its condition holds.
class CallCheck {
 public:
  explicit CallCheck(const OpCall& call) : call_(call) {}

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    std::vector<std::string> types;
    for (const Tensor& each : call_.inputs)
      types.push_back(concat(each.dtype(), " ", each.shape()));
    fail_op(call_.op, call_.where, "not a valid call: ", parts..., "; the inputs are ",
            join(types));
  }
  template <class... Parts>
  void expect(bool holds, const Parts&... parts) const {
    if (!holds) refuse("expected ", parts...);
  }

  const Shape& shape(std::size_t i) const { return call_.inputs.at(i).shape(); }
  DType dtype(std::size_t i) const { return call_.inputs.at(i).dtype(); }
  TensorSpec like(std::size_t i) const { return {shape(i), dtype(i)}; }
  std::size_t num_inputs() const { return call_.inputs.size(); }
  /// Returns the shape of output i, for operations whose inputs do not determine it.
  const Shape& output(std::size_t i = 0) const {
    expect(i < call_.outputs.size(), "at least ", i + 1, " outputs");
    return call_.outputs[i].shape;
  }

  void inputs(std::size_t fewest, std::size_t most) const {
    expect(num_inputs() >= fewest, "at least ", fewest, " inputs");
    expect(num_inputs() <= most, "at most ", most, " inputs");
  }
  /// Expects all inputs, starting with number `first`, to have the same type.
  void one_type(std::size_t first = 0) const {
    for (std::size_t i = first; i < num_inputs(); ++i) {
      expect(dtype(i) == dtype(first), "inputs of one type");
    }
  }
  void same_shape(std::size_t i, const Shape& expected) const {
    expect(shape(i) == expected, "input ", i, " of shape ", expected);
  }
  void index(std::size_t i) const {
    expect(dtype(i) == DType::kInt32 || dtype(i) == DType::kInt64,
           "int32 or int64 indices as input ", i);
  }
  void rank(const Shape& shape, int least, int most = Shape::kMaxRank) const {
    expect(shape.rank() >= least && shape.rank() <= most, "a rank from ", least, " to ", most);
  }
  void axis(int axis) const {
    expect(axis >= 0 && axis < shape(0).rank(), "an axis of the input, got ", axis);
  }
  template <class T>
  const T& attributes() const {
    const T* const own = std::get_if<T>(&call_.attributes);
    if (own == nullptr)
      refuse("expected the attributes of this operation, got alternative ",
             call_.attributes.index(), " of Attributes");
    return *own;
  }
  /// Throws unless all numbers are >= `least` and fit into 32 bits, so that 64 bits hold their sums
  /// and their products with a dimension.
  template <class... Numbers>
  void sizes(std::int64_t least, Numbers... numbers) const {
    const auto fits = [&](std::int64_t number) {
      return number >= least && number <= std::numeric_limits<std::int32_t>::max();
    };
    expect((fits(numbers) && ...), "sizes from ", least, " to 2147483647");
  }
  void small(const Shape& shape) const {
    for (const std::int64_t dim : shape) sizes(0, dim);
  }

 private:
  const OpCall& call_;
};

Shape shape_of(const std::vector<std::int64_t>& dims) { return Shape(dims); }

std::int64_t positions(const CallCheck& c, std::int64_t input, std::int64_t before,
                       std::int64_t after, std::int64_t window, std::int64_t stride) {
  c.expect(input + before + after - window + stride >= 0, "a window within the image");
  return window_positions(input, before, after, window, stride);
}

Shape convolved(const CallCheck& c, const Shape& x, const Shape& f) {
  const auto& a = c.attributes<Conv2dAttributes>();
  c.rank(x, 4, 4), c.rank(f, 4, 4), c.small(x), c.small(f);
  c.sizes(1, a.stride_h, a.stride_w, a.dilation_h, a.dilation_w, a.groups, f[0], f[1]);
  c.sizes(0, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right);
  c.expect(x[3] == f[2] * a.groups && f[3] % a.groups == 0, "channels that fit the filter");
  return {
      x[0], positions(c, x[1], a.pad_top, a.pad_bottom, dilated(f[0], a.dilation_h), a.stride_h),
      positions(c, x[2], a.pad_left, a.pad_right, dilated(f[1], a.dilation_w), a.stride_w), f[3]};
}

Shape pooled(const CallCheck& c, const Shape& x) {
  const auto& a = c.attributes<Pool2dAttributes>();
  c.rank(x, 4, 4), c.small(x);
  c.sizes(1, a.window_h, a.window_w, a.stride_h, a.stride_w);
  c.sizes(0, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right);
  c.expect(a.pad_top < a.window_h && a.pad_bottom < a.window_h && a.pad_left < a.window_w &&
               a.pad_right < a.window_w,
           "padding that is smaller than the window");
  return {x[0], positions(c, x[1], a.pad_top, a.pad_bottom, a.window_h, a.stride_h),
          positions(c, x[2], a.pad_left, a.pad_right, a.window_w, a.stride_w), x[3]};
}

Shape enlarged(const CallCheck& c, const Shape& x) {
  const auto& a = c.attributes<UpsampleAttributes>();
  c.rank(x, 4, 4), c.small(x), c.sizes(1, a.factor_h, a.factor_w);
  return {x[0], x[1] * a.factor_h, x[2] * a.factor_w, x[3]};
}

Shape broadcast_of_all(const CallCheck& c, std::size_t count) {
  Shape shape = c.shape(0);
  for (std::size_t i = 1; i < count; ++i) {
    const std::optional<Shape> both = try_broadcast(shape, c.shape(i));
    c.expect(both.has_value(), "shapes that broadcast");
    shape = *both;
  }
  return shape;
}

Specs matmul_outputs(const CallCheck& c) {
  const auto& a = c.attributes<MatMulAttributes>();
  c.inputs(2, 3), c.one_type();
  const Shape &x = c.shape(0), &y = c.shape(1);
  c.rank(x, 2), c.rank(y, 2);
  const auto batch = [](const Shape& s) { return s.dims().first(s.dims().size() - 2); };
  const bool batches_fit = x.rank() == 2 || y.rank() == 2 || std::ranges::equal(batch(x), batch(y));
  c.expect(batches_fit && x.dim(a.transpose_a ? -2 : -1) == y.dim(a.transpose_b ? -1 : -2),
           "matrices of matching sizes");
  const std::int64_t columns = y.dim(a.transpose_b ? -2 : -1);
  if (a.sum_over_batch) {
    c.inputs(2, 2);
    c.expect(a.transpose_a && !a.transpose_b && x.rank() == y.rank() &&
                 a.activation == FusedActivation::kNone,
             "two batches of the same rank, the first transposed");
    return {{{x.dim(-1), columns}, c.dtype(0)}};
  }
  if (c.num_inputs() == 3) c.same_shape(2, {columns});
  const Shape& longer = x.rank() >= y.rank() ? x : y;
  return {{longer.with_dim(-2, x.dim(a.transpose_a ? -1 : -2)).with_dim(-1, columns), c.dtype(0)}};
}

/// Expects `count` inputs with one element per channel after x, then `rest` inputs of x's shape.
/// Returns the type of the inputs with one element per channel.
DType channels(const CallCheck& c, std::size_t count, std::size_t rest) {
  c.inputs(1 + count + rest, 1 + count + rest);
  c.attributes<BatchNormAttributes>();
  c.rank(c.shape(0), 2);
  const DType own = c.dtype(1);
  c.expect(own == c.dtype(0) || (is_half(c.dtype(0)) && own == DType::kFloat32),
           "parameters of the input's type, or float32 for 16-bit inputs");
  for (std::size_t i = 1; i <= count; ++i) {
    c.same_shape(i, {c.shape(0).dim(-1)});
    c.expect(c.dtype(i) == own, "parameters of one type");
  }
  for (std::size_t i = 1 + count; i < c.num_inputs(); ++i) {
    c.same_shape(i, c.shape(0));
    c.expect(c.dtype(i) == c.dtype(0), "a gradient of the input's type");
  }
  return own;
}

Specs group_norm_outputs(const CallCheck& c, bool is_gradient) {
  const auto& a = c.attributes<GroupNormAttributes>();
  c.inputs(is_gradient ? 5 : 3, is_gradient ? 5 : 3), c.one_type();
  const Shape& statistics = is_gradient ? c.shape(2) : c.output(1);
  const std::int64_t features = c.shape(1).num_elements();
  c.rank(statistics, 1), c.small(statistics), c.sizes(1, a.groups), c.sizes(0, a.positions);
  c.sizes(0, features);
  c.expect(statistics[-1] == a.groups && a.groups > 0, "statistics of each group");
  const std::int64_t positions_of_all = statistics.num_elements() / a.groups * a.positions;
  c.sizes(0, positions_of_all);
  c.expect(features % a.groups == 0 && positions_of_all * features == c.shape(0).num_elements(),
           "channels in equal groups, and statistics of matching size");
  if (!is_gradient) {
    c.same_shape(2, c.shape(1));
    return {c.like(0), {statistics, c.dtype(0)}, {statistics, c.dtype(0)}};
  }
  c.same_shape(3, statistics), c.same_shape(4, c.shape(0));
  return {c.like(0), c.like(1), c.like(1)};
}

Specs attention_outputs(const CallCheck& c, bool is_gradient) {
  c.expect(c.attributes<AttentionAttributes>().steps_before >= 0, "steps_before >= 0");
  c.inputs(is_gradient ? 6 : 3, is_gradient ? 6 : 3);
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  c.rank(q, 4, 4), c.rank(k, 4, 4), c.rank(v, 4, 4);
  c.expect(q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] &&
               k[1] > 0 && q[1] % k[1] == 0,
           "query, key and value of matching shapes");
  const Shape result = q.with_dim(3, v[3]), sums{q[0], q[1], q[2]};
  const DType type_of_sums = is_half(c.dtype(0)) ? DType::kFloat32 : c.dtype(0);
  for (std::size_t i = 1; i < c.num_inputs(); ++i) {
    c.expect(c.dtype(i) == (i == 4 ? type_of_sums : c.dtype(0)), "inputs of one type");
  }
  if (!is_gradient) return {{result, c.dtype(0)}, {sums, type_of_sums}};
  c.same_shape(3, result), c.same_shape(4, sums), c.same_shape(5, result);
  return {c.like(0), c.like(1), c.like(2)};
}

Specs reduced(const CallCheck& c) {
  const auto& a = c.attributes<AxesAttributes>();
  c.inputs(1, 1);
  const int rank = c.shape(0).rank();
  c.expect(a.axes >> rank == 0, "axes of the input");
  std::vector<std::int64_t> dims;
  for (int axis = 0; axis < rank; ++axis) {
    const bool is_reduced = a.axes >> axis & 1u;
    if (!is_reduced || a.keep_dims) dims.push_back(is_reduced ? 1 : c.shape(0)[axis]);
  }
  return {{shape_of(dims), c.dtype(0)}};
}

Specs arg_extreme(const CallCheck& c) {
  const int axis = c.attributes<AxisAttributes>().axis;
  c.inputs(1, 1), c.axis(axis);
  const Shape shape = c.shape(0).without_axis(axis);
  c.expect(c.shape(0)[axis] > 0 || shape.num_elements() == 0, "an axis with elements");
  return {{shape, DType::kInt64}};
}

Specs transposed(const CallCheck& c) {
  const auto& permutation = c.attributes<TransposeAttributes>().permutation;
  c.inputs(1, 1);
  std::uint32_t seen = 0;
  std::vector<std::int64_t> dims;
  for (int i = 0; i < c.shape(0).rank(); ++i) {
    const int axis = permutation[static_cast<std::size_t>(i)];
    c.axis(axis);
    seen |= 1u << axis;
    dims.push_back(c.shape(0)[axis]);
  }
  c.expect(seen + 1 == 1u << c.shape(0).rank(), "a permutation of the axes");
  return {{shape_of(dims), c.dtype(0)}};
}

/// Throws unless `part` fits into `whole` at offset `begin`. For padding, `whole` is the output and
/// `part` the input.
void check_part(const CallCheck& c, const Shape& whole, const Shape& part,
                std::span<const std::int64_t> begin) {
  c.expect(whole.rank() == part.rank(), "a result of the input's rank");
  for (int axis = 0; axis < whole.rank(); ++axis) {
    const std::int64_t first = begin[static_cast<std::size_t>(axis)];
    c.expect(first >= 0 && part[axis] <= whole[axis] && first <= whole[axis] - part[axis],
             "parts within the shape");
  }
  for (std::size_t axis = static_cast<std::size_t>(whole.rank()); axis < begin.size(); ++axis) {
    c.expect(begin[axis] == 0, "a begin of 0 for axes that the shape lacks");
  }
}

Specs concatenated(const CallCheck& c) {
  const int axis = c.attributes<AxisAttributes>().axis;
  c.axis(axis), c.one_type();
  std::int64_t length = 0;
  for (std::size_t i = 0; i < c.num_inputs(); ++i) {
    c.expect(c.shape(i).rank() == c.shape(0).rank() &&
                 c.shape(i).with_dim(axis, 0) == c.shape(0).with_dim(axis, 0),
             "equal shapes except along the axis");
    length += c.shape(i)[axis];
  }
  return {{c.shape(0).with_dim(axis, length), c.dtype(0)}};
}

Specs one_hot_outputs(const CallCheck& c, DType dtype) {
  c.attributes<OneHotAttributes>();
  c.inputs(1, 1), c.index(0), c.rank(c.output(), 1);
  std::vector<std::int64_t> dims(c.shape(0).begin(), c.shape(0).end());
  dims.push_back(c.output().dim(-1));
  return {{shape_of(dims), dtype}};
}

Specs gathered(const CallCheck& c) {
  c.inputs(2, 2), c.index(1), c.rank(c.shape(0), 1);
  c.expect(c.shape(0).rank() + c.shape(1).rank() - 1 <= Shape::kMaxRank, "a result of at most ",
           Shape::kMaxRank, " dimensions");
  std::vector<std::int64_t> dims(c.shape(1).begin(), c.shape(1).end());
  dims.insert(dims.end(), c.shape(0).begin() + 1, c.shape(0).end());
  return {{shape_of(dims), c.dtype(0)}};
}

Specs scattered_rows(const CallCheck& c) {
  c.inputs(2, 2), c.index(1), c.rank(c.shape(1), 1, 1), c.rank(c.output(), 1);
  c.same_shape(0, c.output().with_dim(0, c.shape(1)[0]));
  return {{c.output(), c.dtype(0)}};
}

Specs cross_entropy(const CallCheck& c, bool is_sparse, bool is_gradient) {
  c.inputs(is_gradient ? 3 : 2, is_gradient ? 3 : 2), c.one_type(1), c.rank(c.shape(1), 1);
  c.expect(c.shape(1)[-1] > 0, "at least one class");
  const Shape rows = c.shape(1).without_axis(-1);
  if (is_sparse) {
    c.index(0);
  } else {
    c.one_type();
  }
  c.same_shape(0, is_sparse ? rows : c.shape(1));
  if (!is_gradient) return {{rows, c.dtype(1)}};
  c.same_shape(2, rows);
  return {c.like(1)};
}

/// Returns the specs of the outputs that the operation computes from these inputs and attributes.
Specs outputs_of(const OpCall& call, const CallCheck& c) {
  const auto is_between = [&](OpId first, OpId last) {
    return call.op >= first && call.op <= last;
  };
  const auto elementwise = [&](std::size_t count) -> Specs {
    c.inputs(count, count), c.one_type();
    return {{broadcast_of_all(c, count), c.dtype(0)}};
  };
  const auto of_one_shape = [&](std::size_t count, int least_rank = 0) -> Specs {
    c.inputs(count, count), c.one_type(), c.rank(c.shape(0), least_rank);
    for (std::size_t i = 1; i < count; ++i) c.same_shape(i, c.shape(0));
    return {c.like(0)};
  };
  const auto with = [&]<class T>(const T*) -> Specs {
    c.attributes<T>();
    return of_one_shape(1);
  };
  switch (call.op) {
    case OpId::kCast:
      c.inputs(1, 1);
      return {{c.shape(0), c.attributes<CastAttributes>().to}};
    case OpId::kClip:
      return with(static_cast<ClipAttributes*>(nullptr));
    case OpId::kDropout: {
      const double rate = c.attributes<DropoutAttributes>().rate;
      c.expect(rate >= 0.0 && rate < 1.0, "a rate in [0, 1)");
      return of_one_shape(1);
    }
    case OpId::kWhere:
      c.inputs(3, 3), c.one_type(1);
      c.expect(c.dtype(0) == DType::kBool, "a condition of bool");
      return {{broadcast_of_all(c, 3), c.dtype(1)}};
    case OpId::kArgMax:
    case OpId::kArgMin:
      return arg_extreme(c);
    case OpId::kMatMul:
      return matmul_outputs(c);
    case OpId::kConv2d:
      c.inputs(2, 3), c.one_type();
      if (c.num_inputs() == 3) c.same_shape(2, {c.shape(1).dim(-1)});
      return {{convolved(c, c.shape(0), c.shape(1)), c.dtype(0)}};
    case OpId::kConv2dBackwardInput:
      c.inputs(2, 2), c.one_type(), c.same_shape(0, convolved(c, c.output(), c.shape(1)));
      return {{c.output(), c.dtype(0)}};
    case OpId::kConv2dBackwardFilter:
      c.inputs(2, 2), c.one_type(), c.same_shape(1, convolved(c, c.shape(0), c.output()));
      return {{c.output(), c.dtype(0)}};
    case OpId::kBiasGrad:
      c.inputs(1, 1), c.rank(c.shape(0), 1);
      return {{{c.shape(0).dim(-1)}, c.dtype(0)}};
    case OpId::kMaxPool:
    case OpId::kAveragePool:
      c.inputs(1, 1);
      return {{pooled(c, c.shape(0)), c.dtype(0)}};
    case OpId::kMaxPoolGrad:
      c.inputs(2, 2), c.one_type(), c.same_shape(1, pooled(c, c.shape(0)));
      return {c.like(0)};
    case OpId::kAveragePoolGrad:
      c.inputs(1, 1), c.same_shape(0, pooled(c, c.output()));
      return {{c.output(), c.dtype(0)}};
    case OpId::kBatchNormTraining: {
      const TensorSpec statistics{{c.shape(0).dim(-1)}, channels(c, 2, 0)};
      return {c.like(0), statistics, statistics};
    }
    case OpId::kBatchNormGrad:
      channels(c, 3, 1);
      return {c.like(0), c.like(1), c.like(1)};
    case OpId::kBatchNormInference:
      channels(c, 4, 0);
      return {c.like(0)};
    case OpId::kLrn:
    case OpId::kLrnGrad:
      c.sizes(0, c.attributes<LrnAttributes>().depth_radius);
      return of_one_shape(call.op == OpId::kLrn ? 1 : 2, 2);
    case OpId::kGroupNorm:
    case OpId::kGroupNormGrad:
      return group_norm_outputs(c, call.op == OpId::kGroupNormGrad);
    case OpId::kSoftmax:
    case OpId::kLogSoftmax:
      return of_one_shape(1, 1);
    case OpId::kSoftmaxGrad:
    case OpId::kLogSoftmaxGrad:
      return of_one_shape(2, 1);
    case OpId::kSoftmaxCrossEntropy:
      return cross_entropy(c, false, false);
    case OpId::kSparseSoftmaxCrossEntropy:
    case OpId::kSparseSoftmaxCrossEntropyGrad:
      return cross_entropy(c, true, call.op == OpId::kSparseSoftmaxCrossEntropyGrad);
    case OpId::kSigmoidCrossEntropy:
      return of_one_shape(2);
    case OpId::kAttention:
    case OpId::kAttentionGrad:
      return attention_outputs(c, call.op == OpId::kAttentionGrad);
    case OpId::kReshape:
      c.inputs(1, 1);
      c.expect(c.output().num_elements() == c.shape(0).num_elements(),
               "the same number of elements");
      return {{c.output(), c.dtype(0)}};
    case OpId::kTranspose:
      return transposed(c);
    case OpId::kSlice:
      c.inputs(1, 1), check_part(c, c.shape(0), c.output(), c.attributes<SliceAttributes>().begin);
      return {{c.output(), c.dtype(0)}};
    case OpId::kPad:
      c.inputs(1, 1), check_part(c, c.output(), c.shape(0), c.attributes<PadAttributes>().before);
      return {{c.output(), c.dtype(0)}};
    case OpId::kConcat:
      return concatenated(c);
    case OpId::kBroadcastTo:
      c.inputs(1, 1);
      c.expect(try_broadcast(c.shape(0), c.output()) == c.output(),
               "a shape to which the input broadcasts");
      return {{c.output(), c.dtype(0)}};
    case OpId::kOneHot:
      c.expect(!call.outputs.empty(), "an output");
      return one_hot_outputs(c, call.outputs[0].dtype);
    case OpId::kGather:
      return gathered(c);
    case OpId::kScatterRows:
      return scattered_rows(c);
    case OpId::kReverse:
      c.expect(c.attributes<AxesAttributes>().axes >> c.shape(0).rank() == 0, "axes of the input");
      return of_one_shape(1);
    case OpId::kCumulativeSum:
      c.axis(c.attributes<CumulativeSumAttributes>().axis);
      return of_one_shape(1);
    case OpId::kTopK: {
      c.inputs(1, 1), c.rank(c.shape(0), 1), c.rank(c.output(), 1);
      const std::int64_t count = c.output().dim(-1);
      c.expect(count <= c.shape(0).dim(-1), "a k of at most the length of the last axis");
      const Shape shape = c.shape(0).with_dim(-1, count);
      return {{shape, c.dtype(0)}, {shape, DType::kInt64}};
    }
    case OpId::kUpsample:
      c.inputs(1, 1);
      return {{enlarged(c, c.shape(0)), c.dtype(0)}};
    case OpId::kUpsampleGrad:
      c.inputs(1, 1), c.same_shape(0, enlarged(c, c.output()));
      return {{c.output(), c.dtype(0)}};
    default:
      break;
  }
  if (is_between(OpId::kReduceSum, OpId::kReduceAll)) return reduced(c);
  if (!is_between(OpId::kAdd, OpId::kGeluTanhGrad)) return of_one_shape(1);
  Specs outputs = elementwise(2);
  if (is_between(OpId::kEqual, OpId::kLogicalOr)) outputs[0].dtype = DType::kBool;
  return outputs;
}

}  // namespace

void check_call(const OpCall& call) {
  const CallCheck c(call);
  c.inputs(1, std::numeric_limits<std::size_t>::max());
  const Specs expected = outputs_of(call, c);
  const auto is_same = [](const TensorSpec& a, const TensorSpec& b) {
    return a.shape == b.shape && a.dtype == b.dtype;
  };
  if (std::ranges::equal(expected, call.outputs, is_same)) return;
  std::vector<std::string> types;
  for (const TensorSpec& each : expected) types.push_back(concat(each.dtype, " ", each.shape));
  c.refuse("expected outputs ", join(types));
}

}  // namespace tutti::internal
