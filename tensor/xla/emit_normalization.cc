// Normalisations in StableHLO, with the formulas from cpu/reference/normalization.cc.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

Hlo sum_over(const Hlo& x, std::uint32_t axes) { return x.text->reduce("add", x, 0.0, axes); }

/// Returns the bit mask of all axes but the last.
std::uint32_t rows_axes(const Hlo& x) { return (1u << (x.shape.rank() - 1)) - 1; }

double num_rows(const Hlo& x) {
  const std::int64_t channels = std::max<std::int64_t>(x.shape.dim(-1), 1);
  return static_cast<double>(std::max<std::int64_t>(x.shape.num_elements() / channels, 1));
}

Hlo inverse_deviation(const Hlo& variance, double epsilon) {
  return 1.0 / sqrt(variance + epsilon);
}

/// Broadcasts [channels] to each row of x.
Hlo by_channel(const Hlo& channels, const Hlo& x) { return x.text->broadcast(channels, x.shape); }

Hlos batch_training(HloText&, const OpCall& call, HloInputs in) {
  const Hlo &x = in[0], &gamma = in[1], &beta = in[2];
  const double epsilon = call.attributes_as<BatchNormAttributes>().epsilon;
  const Hlo mean = sum_over(x, rows_axes(x)) / num_rows(x);
  const Hlo centered = x - by_channel(mean, x);
  const Hlo variance = sum_over(centered * centered, rows_axes(x)) / num_rows(x);
  const Hlo scale = gamma / sqrt(variance + epsilon);
  return {centered * by_channel(scale, x) + by_channel(beta, x), mean, variance};
}

Hlos batch_inference(HloText&, const OpCall& call, HloInputs in) {
  const Hlo& x = in[0];
  const double epsilon = call.attributes_as<BatchNormAttributes>().epsilon;
  const Hlo scale = in[1] / sqrt(in[4] + epsilon);
  return {(x - by_channel(in[3], x)) * by_channel(scale, x) + by_channel(in[2], x)};
}

Hlos batch_gradient(HloText&, const OpCall& call, HloInputs in) {
  const Hlo &x = in[0], &gamma = in[1], &dy = in[4];
  const Hlo inverse = inverse_deviation(in[3], call.attributes_as<BatchNormAttributes>().epsilon);
  const Hlo z = (x - by_channel(in[2], x)) * by_channel(inverse, x);
  const Hlo dbeta = sum_over(dy, rows_axes(x)), dgamma = sum_over(dy * z, rows_axes(x));
  const Hlo shared = (by_channel(dbeta, x) + z * by_channel(dgamma, x)) / num_rows(x);
  return {by_channel(gamma * inverse, x) * (dy - shared), dgamma, dbeta};
}

/// Returns, for each channel, the sum over the 2 * radius + 1 channels centred on it.
Hlo sum_of_neighbours(const Hlo& x, std::int64_t radius) {
  HloWindow window = HloWindow::of_one_element(x.shape.rank());
  window.size.back() = 2 * radius + 1;
  window.padding.back() = {radius, radius};
  return x.text->reduce_window("add", x, 0.0, window, x.shape);
}

Hlo lrn_base_of(const Hlo& x, const LrnAttributes& a) {
  return sum_of_neighbours(x * x, a.depth_radius) * a.alpha + a.bias;
}

Hlo raised(const Hlo& x, double exponent) {
  return x.text->same("power", {x, x.text->constant(exponent, x.shape, x.type)});
}

Hlos local_response(HloText&, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<LrnAttributes>();
  return {in[0] * raised(lrn_base_of(in[0], a), -a.beta)};
}

Hlos local_response_gradient(HloText&, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<LrnAttributes>();
  const Hlo &x = in[0], &dy = in[1];
  const Hlo base = lrn_base_of(x, a);
  const Hlo others = sum_of_neighbours(dy * x * raised(base, -a.beta - 1.0), a.depth_radius);
  return {dy * raised(base, -a.beta) - x * others * (2.0 * a.alpha * a.beta)};
}

/// x viewed as [batch, positions, groups, channels per group]; statistics are [batch, groups].
struct Groups {
  Groups(const Hlo& x_, const Hlo& gamma, const Shape& statistics, const GroupNormAttributes& a)
      : text(*x_.text),
        shape{statistics.num_elements() / a.groups, a.positions, a.groups,
              gamma.shape.num_elements() / a.groups},
        x(text.reshape(x_, shape)),
        count(static_cast<double>(std::max<std::int64_t>(shape[1] * shape[3], 1))) {}

  Hlo sum(const Hlo& value) const { return sum_over(value, 1u << 1 | 1u << 3); }
  /// Broadcasts statistics [batch, groups] to the shape of x.
  Hlo beside(const Hlo& statistics) const {
    const int axes[] = {0, 2};
    return text.broadcast(text.reshape(statistics, {shape[0], shape[2]}), shape, axes);
  }
  /// Broadcasts weights [groups * channels per group] to the shape of x.
  Hlo channels(const Hlo& weights) const {
    return text.broadcast(text.reshape(weights, {shape[2], shape[3]}), shape);
  }
  /// Returns the sums over all axes except the channels, in the shape of gamma.
  Hlo sum_by_channel(const Hlo& value, const Shape& like) const {
    return text.reshape(sum_over(value, 1u << 0 | 1u << 1), like);
  }

  HloText& text;
  Shape shape;
  Hlo x;
  double count;
};

Hlos group_training(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<GroupNormAttributes>();
  const Groups groups(in[0], in[1], call.outputs[1].shape, a);
  const Hlo mean = groups.sum(groups.x) / groups.count;
  const Hlo centered = groups.x - groups.beside(mean);
  const Hlo variance = groups.sum(centered * centered) / groups.count;
  const Hlo z = centered * groups.beside(inverse_deviation(variance, a.epsilon));
  const Hlo y = z * groups.channels(in[1]) + groups.channels(in[2]);
  return {text.reshape(y, call.outputs[0].shape), text.reshape(mean, call.outputs[1].shape),
          text.reshape(variance, call.outputs[2].shape)};
}

Hlos group_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<GroupNormAttributes>();
  const Groups groups(in[0], in[1], in[2].shape, a);
  const Hlo dy = text.reshape(in[4], groups.shape);
  const Hlo inverse = groups.beside(inverse_deviation(in[3], a.epsilon));
  const Hlo z = (groups.x - groups.beside(in[2])) * inverse;
  const Hlo g = dy * groups.channels(in[1]);
  const Hlo shared = groups.beside(groups.sum(g)) + z * groups.beside(groups.sum(g * z));
  const Hlo dx = inverse * (g - shared / groups.count);
  return {text.reshape(dx, call.outputs[0].shape),
          groups.sum_by_channel(dy * z, call.outputs[1].shape),
          groups.sum_by_channel(dy, call.outputs[2].shape)};
}

}  // namespace

void register_normalization_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kBatchNormTraining, batch_training);
  emitters.set(OpId::kBatchNormInference, batch_inference);
  emitters.set(OpId::kBatchNormGrad, batch_gradient);
  emitters.set(OpId::kLrn, local_response);
  emitters.set(OpId::kLrnGrad, local_response_gradient);
  emitters.set(OpId::kGroupNorm, group_training);
  emitters.set(OpId::kGroupNormGrad, group_gradient);
}

}  // namespace tutti::internal
