// Layers that combine several tensors into one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/merging.h"

#include "core/names.h"
#include "model/layers/in_float32.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

Tensor sum_of(const Tensor& a, const Tensor& b) { return a + b; }

/// Moves `axis` to the end.
Tensor axis_last(const Tensor& x, int axis) {
  std::vector<int> order;
  for (int i = 0; i < x.rank(); ++i)
    if (i != axis) order.push_back(i);
  order.push_back(axis);
  return axis == x.rank() - 1 ? x : transpose(x, order);
}

Tensor unit_rows(const Tensor& x) {
  return internal::in_float32(x, [](const Tensor& wide) {
    const Tensor squares = reduce_sum(square(wide), {.axes = {-1}, .keep_dims = true});
    return wide * rsqrt(maximum(squares, 1e-14));  // a length below 1e-7 counts as 1e-7 (Keras)
  });
}

/// Converts `axis`, which counts the batch as axis 0, to an axis of one example. Throws if it is
/// out of range.
int example_axis(const Shape& example, int axis, std::string_view who) {
  const int normal = axis < 0 ? axis + example.rank() + 1 : axis;
  internal::require(normal >= 1 && normal <= example.rank(), who, ": expected an axis from 1 to ",
                    example.rank(), " (axis 0 is the batch) for examples of shape ", example,
                    ", got ", axis);
  return normal - 1;
}

void require_inputs(std::span<const Shape> inputs, std::size_t least, std::string_view who) {
  if (inputs.size() >= least) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected at least ", least, " inputs, got ",
       inputs.size(), "; call layer({a, b})");
}

/// Returns the mask of the concatenated inputs. Along axis 1 (the steps), masks are concatenated;
/// along a later axis, a step is unmasked if it is unmasked in any input. Inputs without a mask are
/// unmasked. Returns an undefined tensor if no input has a mask.
Tensor joined_masks(std::span<const Tensor> inputs, int axis) {
  if (!MaskScope::has_masks() || inputs[0].rank() < 3) return Tensor();
  std::vector<Tensor> masks;
  bool any = false;
  for (const Tensor& input : inputs) {
    Tensor mask = MaskScope::mask_of(input);
    any = any || mask.defined();
    const Shape steps{input.shape()[0], input.shape()[1]};
    masks.push_back(mask.defined() ? mask : Tensor::ones(steps, DType::kBool, input.device()));
  }
  if (!any || axis == 1) return any ? concat(masks, 1) : Tensor();
  Tensor result = masks[0];
  for (const Tensor& mask : masks) result = logical_or(result, mask);
  return result;
}

/// Returns the dimensions of `front`, then those of `back`, without the given axes.
Shape joined(const Shape& front, int front_axis, const Shape& back, int back_axis) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < front.rank(); ++i)
    if (i != front_axis) dims.push_back(front[i]);
  for (int i = 0; i < back.rank(); ++i)
    if (i != back_axis) dims.push_back(back[i]);
  if (dims.empty()) dims.push_back(1);
  return Shape(std::span<const std::int64_t>(dims));
}

}  // namespace

std::vector<Shape> Merging::build_all(std::span<const Shape> inputs) {
  require_inputs(inputs, 2, type_name());
  Shape shape = inputs[0];
  for (const Shape& input : inputs.subspan(1)) {
    if (input.rank() != shape.rank()) {
      fail(ErrorCode::kInvalidArgument, type_name(), ": expected inputs of equal rank, got ",
           join(inputs), "; use Reshape");
    }
    shape = broadcast(shape, input, type_name());
  }
  return {shape};
}

std::vector<Tensor> Merging::call_all(std::span<const Tensor> inputs, CallContext) const {
  Tensor result = inputs[0];
  for (const Tensor& input : inputs.subspan(1)) result = merge_(result, input);
  if (mask_use_ == MaskUse::kOwn) merge_masks(inputs, result);
  return {result};
}

void Merging::merge_masks(std::span<const Tensor> inputs, const Tensor& result) const {
  Tensor merged;
  for (const Tensor& input : inputs) {
    const Tensor mask = MaskScope::mask_of(input);
    if (!mask.defined()) return;
    merged = merged.defined() ? logical_or(merged, mask) : mask;
  }
  MaskScope::set_mask(result, merged);
}

Add::Add(MergingOptions options) : LayerOf(&sum_of, MaskUse::kOwn, std::move(options)) {
  made_with();
}
Average::Average(MergingOptions options) : LayerOf(&sum_of, MaskUse::kOwn, std::move(options)) {
  made_with();
}
Subtract::Subtract(MergingOptions options)
    : LayerOf([](const Tensor& a, const Tensor& b) { return a - b; }, MaskUse::kOwn,
              std::move(options)) {
  made_with();
}
Multiply::Multiply(MergingOptions options)
    : LayerOf([](const Tensor& a, const Tensor& b) { return a * b; }, MaskUse::kEnds,
              std::move(options)) {
  made_with();
}
Maximum::Maximum(MergingOptions options)
    : LayerOf([](const Tensor& a, const Tensor& b) { return maximum(a, b); }, MaskUse::kEnds,
              std::move(options)) {
  made_with();
}
Minimum::Minimum(MergingOptions options)
    : LayerOf([](const Tensor& a, const Tensor& b) { return minimum(a, b); }, MaskUse::kEnds,
              std::move(options)) {
  made_with();
}

std::vector<Shape> Subtract::build_all(std::span<const Shape> inputs) {
  if (inputs.size() != 2)
    fail(ErrorCode::kInvalidArgument, "Subtract: expected two inputs, got ", inputs.size());
  return Merging::build_all(inputs);
}

std::vector<Tensor> Average::call_all(std::span<const Tensor> inputs, CallContext context) const {
  const Tensor sum = Merging::call_all(inputs, context)[0];
  const Tensor mean = sum / static_cast<double>(inputs.size());
  MaskScope::set_mask(mean, MaskScope::mask_of(sum));
  return {mean};
}

Concatenate::Concatenate(ConcatenateOptions options) : LayerOf(options.name), axis_(options.axis) {
  made_with(options);
}

std::vector<Shape> Concatenate::build_all(std::span<const Shape> inputs) {
  require_inputs(inputs, 2, "Concatenate");
  const int axis = example_axis(inputs[0], axis_, "Concatenate");
  std::int64_t length = 0;
  for (const Shape& input : inputs) {
    if (input.rank() != inputs[0].rank() ||
        !(input.with_dim(axis, 0) == inputs[0].with_dim(axis, 0))) {
      fail(ErrorCode::kInvalidArgument,
           "Concatenate: expected examples of equal shape except along axis ", axis + 1, ", got ",
           join(inputs));
    }
    length += input[axis];
  }
  return {inputs[0].with_dim(axis, length)};
}

std::vector<Tensor> Concatenate::call_all(std::span<const Tensor> inputs, CallContext) const {
  const Tensor result = concat(inputs, axis_);
  MaskScope::set_mask(result, joined_masks(inputs, axis_ < 0 ? axis_ + result.rank() : axis_));
  return {result};
}

Dot::Dot(DotOptions options) : LayerOf(options.name), options_(std::move(options)) {
  made_with(options_);
}

std::vector<Shape> Dot::build_all(std::span<const Shape> inputs) {
  if (inputs.size() != 2)
    fail(ErrorCode::kInvalidArgument, "Dot: expected two inputs, got ", inputs.size());
  const int a = example_axis(inputs[0], options_.axes.first, "Dot");
  const int b = example_axis(inputs[1], options_.axes.second, "Dot");
  internal::require(inputs[0][a] == inputs[1][b], "Dot: expected equal lengths along axes ", a + 1,
                    " and ", b + 1, ", got ", inputs[0], " and ", inputs[1]);
  return {joined(inputs[0], a, inputs[1], b)};
}

std::vector<Tensor> Dot::call_all(std::span<const Tensor> inputs, CallContext) const {
  const int axis_a = example_axis(inputs[0].shape().without_axis(0), options_.axes.first, "Dot");
  const int axis_b = example_axis(inputs[1].shape().without_axis(0), options_.axes.second, "Dot");
  Tensor a = axis_last(inputs[0], axis_a + 1), b = axis_last(inputs[1], axis_b + 1);
  if (options_.normalize) {
    a = unit_rows(a);
    b = unit_rows(b);
  }
  const std::int64_t rows = a.shape()[0], length = a.shape()[-1];
  auto matrices = [&](const Tensor& x) {
    std::int64_t count = 1;
    for (int i = 1; i + 1 < x.rank(); ++i) count *= x.shape()[i];
    return reshape(x, Shape{rows, count, length});
  };
  return {reshape(matmul(matrices(a), matrices(b), {.transpose_b = true}),
                  output_shape().with_front(rows))};
}

}  // namespace tutti
