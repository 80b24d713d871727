// Reductions, softmax and cross-entropies in StableHLO.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tensor/xla/emitters.h"

namespace tutti::internal {

HloEmitter find_emitter(OpId op) {
  static const HloEmitters emitters = [] {
    HloEmitters all;
    register_elementwise_emitters(all);
    register_image_emitters(all);
    register_linear_emitters(all);
    register_normalization_emitters(all);
    register_reduction_emitters(all);
    register_shape_emitters(all);
    return all;
  }();
  return emitters.find(op);
}

namespace {

/// Reduces over axes. If the reduced axes are kept, they have length 1 in the output.
template <class Name>
Hlos reduced(HloText& text, const OpCall& call, HloInputs in) {
  const std::uint32_t axes = call.attributes_as<AxesAttributes>().axes;
  return {
      text.reshape(text.reduce(Name::kName, in[0], Name::kInitial, axes), call.outputs[0].shape)};
}

struct SumName {
  static constexpr const char* kName = "add";
  static constexpr double kInitial = 0.0;
};
struct ProductName {
  static constexpr const char* kName = "multiply";
  static constexpr double kInitial = 1.0;
};
struct MaxName {
  static constexpr const char* kName = "maximum";
  static constexpr double kInitial = -HUGE_VAL;
};
struct MinName {
  static constexpr const char* kName = "minimum";
  static constexpr double kInitial = HUGE_VAL;
};
struct AnyName {
  static constexpr const char* kName = "or";
  static constexpr double kInitial = 0.0;
};
struct AllName {
  static constexpr const char* kName = "and";
  static constexpr double kInitial = 1.0;
};

Hlos mean_of(HloText& text, const OpCall& call, HloInputs in) {
  const Hlo sum = reduced<SumName>(text, call, in)[0];
  const double count = static_cast<double>(in[0].shape.num_elements()) /
                       static_cast<double>(std::max<std::int64_t>(sum.shape.num_elements(), 1));
  return {sum / count};
}

template <bool kLargest>
Hlos place_of(HloText& text, const OpCall& call, HloInputs in) {
  const int axis = call.attributes_as<AxisAttributes>().axis;
  return {text.reshape(text.arg_extreme(kLargest, in[0], axis), call.outputs[0].shape)};
}

/// Returns the axes that enumerate rows: all except the last one.
std::vector<int> rows_of(const Hlo& x) {
  std::vector<int> axes;
  for (int axis = 0; axis + 1 < x.shape.rank(); ++axis) axes.push_back(axis);
  return axes;
}

Hlo over_row(std::string_view by, const Hlo& x, double initial) {
  return x.text->reduce(by, x, initial, 1u << (x.shape.rank() - 1));
}

Hlo beside_row(const Hlo& of_rows, const Hlo& x) {
  return x.text->broadcast(of_rows, x.shape, rows_of(x));
}

/// Returns x minus the largest element of its row.
Hlo below_top(const Hlo& x) { return x - beside_row(over_row("maximum", x, -HUGE_VAL), x); }

Hlo log_softmax_of(const Hlo& x) {
  const Hlo below = below_top(x);
  return below - beside_row(log(over_row("add", exp(below), 0.0)), x);
}

Hlos softmax_rows(HloText&, const OpCall&, HloInputs in) {
  const Hlo parts = exp(below_top(in[0]));
  return {parts / beside_row(over_row("add", parts, 0.0), parts)};
}

Hlos log_softmax_rows(HloText&, const OpCall&, HloInputs in) { return {log_softmax_of(in[0])}; }

Hlos softmax_gradient(HloText&, const OpCall&, HloInputs in) {
  const Hlo &y = in[0], &dy = in[1];
  return {y * (dy - beside_row(over_row("add", y * dy, 0.0), y))};
}

Hlos log_softmax_gradient(HloText&, const OpCall&, HloInputs in) {
  const Hlo &y = in[0], &dy = in[1];
  return {dy - exp(y) * beside_row(over_row("add", dy, 0.0), y)};
}

Hlos cross_entropy(HloText&, const OpCall&, HloInputs in) {
  return {-over_row("add", in[0] * log_softmax_of(in[1]), 0.0)};
}

/// Returns a mask in the shape of `logits`: true where the class is its row's label. Invalid labels
/// match no class.
Hlo is_label(const Hlo& labels, const Hlo& logits) {
  HloText& text = *logits.text;
  const Hlo wide = text.broadcast(labels, logits.shape, rows_of(logits));
  return text.compare("EQ", wide, text.iota(logits.shape.rank() - 1, logits.shape, labels.type));
}

Hlos sparse_cross_entropy(HloText& text, const OpCall&, HloInputs in) {
  const Hlo &labels = in[0], &logits = in[1];
  const Hlo losses = -log_softmax_of(logits);
  const Hlo zero = text.constant(0.0, logits.shape, logits.type);
  return {over_row("add", text.select(is_label(labels, logits), losses, zero), 0.0)};
}

Hlos sparse_cross_entropy_gradient(HloText& text, const OpCall&, HloInputs in) {
  const Hlo &labels = in[0], &logits = in[1], &dy = in[2];
  const Hlo probabilities = exp(log_softmax_of(logits));
  const Hlo own = text.convert(is_label(labels, logits), logits.type);
  return {(probabilities - own) * beside_row(dy, logits)};
}

/// Computes cumulative sums as sums over windows that begin before the first element, or end after
/// the last.
Hlos running_sum(HloText& text, const OpCall& call, HloInputs in) {
  const auto& attributes = call.attributes_as<CumulativeSumAttributes>();
  const auto axis = static_cast<std::size_t>(attributes.axis);
  const std::int64_t length = in[0].shape.dim(attributes.axis);
  if (length == 0) return {in[0]};
  HloWindow window = HloWindow::of_one_element(in[0].shape.rank());
  window.size[axis] = length;
  // For an exclusive sum, the window is shifted by one, so that it excludes the element itself.
  const std::int64_t near = attributes.exclusive ? length : length - 1;
  const std::int64_t far = attributes.exclusive ? -1 : 0;
  window.padding[axis] = attributes.reverse ? std::pair{far, near} : std::pair{near, far};
  return {text.reduce_window("add", in[0], 0.0, window, in[0].shape)};
}

Hlos largest_elements(HloText& text, const OpCall& call, HloInputs in) {
  const auto [values, places] = text.top_k(in[0], call.outputs[0].shape.dim(-1));
  return {values, text.convert(places, HloType::kI64)};
}

}  // namespace

void register_reduction_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kReduceSum, reduced<SumName>);
  emitters.set(OpId::kReduceMean, mean_of);
  emitters.set(OpId::kReduceMax, reduced<MaxName>);
  emitters.set(OpId::kReduceMin, reduced<MinName>);
  emitters.set(OpId::kReduceProduct, reduced<ProductName>);
  emitters.set(OpId::kReduceAny, reduced<AnyName>);
  emitters.set(OpId::kReduceAll, reduced<AllName>);
  emitters.set(OpId::kArgMax, place_of<true>);
  emitters.set(OpId::kArgMin, place_of<false>);
  emitters.set(OpId::kSoftmax, softmax_rows);
  emitters.set(OpId::kLogSoftmax, log_softmax_rows);
  emitters.set(OpId::kSoftmaxGrad, softmax_gradient);
  emitters.set(OpId::kLogSoftmaxGrad, log_softmax_gradient);
  emitters.set(OpId::kSoftmaxCrossEntropy, cross_entropy);
  emitters.set(OpId::kSparseSoftmaxCrossEntropy, sparse_cross_entropy);
  emitters.set(OpId::kSparseSoftmaxCrossEntropyGrad, sparse_cross_entropy_gradient);
  emitters.set(OpId::kCumulativeSum, running_sum);
  emitters.set(OpId::kTopK, largest_elements);
}

}  // namespace tutti::internal
