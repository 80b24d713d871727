// StableHLO emitters for operations that move elements.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

Hlos reshaped(HloText& text, const OpCall& call, HloInputs in) {
  return {text.reshape(in[0], call.outputs[0].shape)};
}

Hlos transposed(HloText& text, const OpCall& call, HloInputs in) {
  const auto& permutation = call.attributes_as<TransposeAttributes>().permutation;
  const std::vector<std::int64_t> axes(permutation.begin(),
                                       permutation.begin() + in[0].shape.rank());
  return {text.transpose(in[0], axes)};
}

Hlos sliced(HloText& text, const OpCall& call, HloInputs in) {
  return {text.slice(in[0], call.attributes_as<SliceAttributes>().begin, call.outputs[0].shape)};
}

Hlos padded_with(HloText& text, const OpCall& call, HloInputs in) {
  const auto& attributes = call.attributes_as<PadAttributes>();
  std::vector<HloPadding> padding;
  for (int axis = 0; axis < in[0].shape.rank(); ++axis) {
    const std::int64_t before = attributes.before[static_cast<std::size_t>(axis)];
    const std::int64_t grows = call.outputs[0].shape.dim(axis) - in[0].shape.dim(axis);
    padding.push_back({before, grows - before, 0});
  }
  return {text.pad(in[0], attributes.value, padding)};
}

Hlos joined_along(HloText& text, const OpCall& call, HloInputs in) {
  return {text.concatenate(in, call.attributes_as<AxisAttributes>().axis)};
}

Hlos broadcast_as(HloText& text, const OpCall& call, HloInputs in) {
  return {text.broadcast(in[0], call.outputs[0].shape)};
}

Hlos one_hot_of(HloText& text, const OpCall& call, HloInputs in) {
  const auto& attributes = call.attributes_as<OneHotAttributes>();
  const TensorSpec& spec = call.outputs[0];
  std::vector<int> axes;
  for (int axis = 0; axis < in[0].shape.rank(); ++axis) axes.push_back(axis);
  const Hlo classes = text.iota(spec.shape.rank() - 1, spec.shape, in[0].type);
  const Hlo is_it = text.compare("EQ", text.broadcast(in[0], spec.shape, axes), classes);
  return {text.select(is_it, text.constant(attributes.on, spec.shape, hlo_type(spec.dtype)),
                      text.constant(attributes.off, spec.shape, hlo_type(spec.dtype)))};
}

Hlos rows_at(HloText& text, const OpCall& call, HloInputs in) {
  return {text.gather_rows(in[0], in[1], call.outputs[0].shape)};
}

Hlos rows_added(HloText& text, const OpCall& call, HloInputs in) {
  return {text.scatter_rows(in[0], in[1], call.outputs[0].shape)};
}

Hlos reversed_axes(HloText& text, const OpCall& call, HloInputs in) {
  const std::uint32_t bits = call.attributes_as<AxesAttributes>().axes;
  std::vector<int> axes;
  for (int axis = 0; axis < in[0].shape.rank(); ++axis) {
    if (bits >> axis & 1u) axes.push_back(axis);
  }
  return {text.reverse(in[0], axes)};
}

}  // namespace

void register_shape_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kReshape, reshaped);
  emitters.set(OpId::kStopGradient, reshaped);
  emitters.set(OpId::kTranspose, transposed);
  emitters.set(OpId::kSlice, sliced);
  emitters.set(OpId::kPad, padded_with);
  emitters.set(OpId::kConcat, joined_along);
  emitters.set(OpId::kBroadcastTo, broadcast_as);
  emitters.set(OpId::kOneHot, one_hot_of);
  emitters.set(OpId::kGather, rows_at);
  emitters.set(OpId::kScatterRows, rows_added);
  emitters.set(OpId::kReverse, reversed_axes);
}

}  // namespace tutti::internal
