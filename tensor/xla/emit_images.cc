// Pooling and upsampling in StableHLO.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "tensor/op_checks.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

/// Returns a window over the height and width of NHWC images.
HloWindow window_of(const Pool2dAttributes& a) {
  return {{1, a.window_h, a.window_w, 1},
          {1, a.stride_h, a.stride_w, 1},
          {{0, 0}, {a.pad_top, a.pad_bottom}, {a.pad_left, a.pad_right}, {0, 0}}};
}

Hlos largest_of_windows(HloText& text, const OpCall& call, HloInputs in) {
  const HloWindow window = window_of(call.attributes_as<Pool2dAttributes>());
  return {text.reduce_window("maximum", in[0], -HUGE_VAL, window, call.outputs[0].shape)};
}

/// Returns true if adjacent windows touch without overlapping, and the image has no padding.
bool is_tiled(const Pool2dAttributes& a) {
  return a.window_h == a.stride_h && a.window_w == a.stride_w && a.pad_top == 0 &&
         a.pad_bottom == 0 && a.pad_left == 0 && a.pad_right == 0;
}

/// Returns the gradient for windows that tile the image. Compares elements with the maximum,
/// because XLA's CPU plugin is slow at select_and_scatter (docs/tpu.md).
Hlo tiled_gradient(const Hlo& x, const Hlo& dy, const Pool2dAttributes& a) {
  HloText& text = *x.text;
  const Shape& s = dy.shape;
  const Shape covered{s[0], s[1] * a.window_h, s[2] * a.window_w, s[3]};
  const Shape tiles{s[0], s[1], a.window_h, s[2], a.window_w, s[3]};
  constexpr std::uint32_t kWithin = 1u << 2 | 1u << 4;
  const int axes[] = {0, 1, 3, 5};
  const Hlo pixels =
      text.reshape(text.slice(x, std::array<std::int64_t, 4>{0, 0, 0, 0}, covered), tiles);
  const Hlo top = text.broadcast(text.reduce("maximum", pixels, -HUGE_VAL, kWithin), tiles, axes);
  const Hlo is_largest =
      text.same("or", {text.compare("EQ", pixels, top), text.compare("NE", pixels, pixels)});
  const Hlo place = text.iota(2, tiles, HloType::kI32) * static_cast<double>(a.window_w) +
                    text.iota(4, tiles, HloType::kI32);
  const double beyond = static_cast<double>(a.window_h * a.window_w);
  const Hlo candidates =
      text.select(is_largest, place, text.constant(beyond, tiles, HloType::kI32));
  const Hlo first =
      text.broadcast(text.reduce("minimum", candidates, beyond, kWithin), tiles, axes);
  const Hlo zero = text.constant(0.0, tiles, dy.type);
  const Hlo gradient =
      text.select(text.compare("EQ", place, first), text.broadcast(dy, tiles, axes), zero);
  const HloPadding rest[] = {
      {}, {0, x.shape[1] - covered[1], 0}, {0, x.shape[2] - covered[2], 0}, {}};
  return text.pad(text.reshape(gradient, covered), 0.0, rest);
}

Hlos largest_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Pool2dAttributes>();
  if (is_tiled(a)) return {tiled_gradient(in[0], in[1], a)};
  return {text.select_and_scatter(in[0], in[1], window_of(a))};
}

/// Returns, for each window, the number of its pixels that are inside the image (padding is not
/// counted), in the shape of `pooled`.
Hlo pixels_of_windows(const Hlo& pooled, const Shape& image, const Pool2dAttributes& a) {
  HloText& text = *pooled.text;
  const Hlo ones = text.constant(1.0, {1, image[1], image[2], 1}, pooled.type);
  const Shape shape{1, pooled.shape[1], pooled.shape[2], 1};
  return text.broadcast(text.reduce_window("add", ones, 0.0, window_of(a), shape), pooled.shape);
}

Hlos mean_of_windows(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Pool2dAttributes>();
  const Hlo sums = text.reduce_window("add", in[0], 0.0, window_of(a), call.outputs[0].shape);
  return {sums / pixels_of_windows(sums, in[0].shape, a)};
}

// The gradient of a pixel is a sum over the windows that contain it: each window adds its gradient
// divided by its number of pixels. This is a reduce-window over the dilated gradient.
Hlos mean_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Pool2dAttributes>();
  const Shape& image = call.outputs[0].shape;
  const Hlo shares = in[0] / pixels_of_windows(in[0], image, a);
  const auto around = [](std::int64_t size, std::int64_t outputs, std::int64_t stride,
                         std::int64_t window, std::int64_t before) {
    const std::int64_t low = window - 1 - before;
    return HloPadding{low, size + window - 1 - ((outputs - 1) * stride + 1) - low, stride - 1};
  };
  const HloPadding padding[] = {
      {},
      around(image[1], shares.shape[1], a.stride_h, a.window_h, a.pad_top),
      around(image[2], shares.shape[2], a.stride_w, a.window_w, a.pad_left),
      {}};
  const HloWindow window{{1, a.window_h, a.window_w, 1}, {1, 1, 1, 1}, {{}, {}, {}, {}}};
  return {text.reduce_window("add", text.pad(shares, 0.0, padding), 0.0, window, image)};
}

const UpsampleAttributes& nearest_only(const OpCall& call) {
  const auto& a = call.attributes_as<UpsampleAttributes>();
  if (a.interpolation == Interpolation::kNearest) return a;
  fail(ErrorCode::kUnimplemented, who(call.op, call.where),
       ": bilinear interpolation is not supported in a step that XLA compiles; expected nearest; "
       "use Interpolation::kNearest, or another strategy");
}

Hlos enlarged(HloText& text, const OpCall& call, HloInputs in) {
  const UpsampleAttributes& a = nearest_only(call);
  const Shape& s = in[0].shape;
  const int axes[] = {0, 1, 3, 5};
  const Hlo repeated =
      text.broadcast(in[0], {s[0], s[1], a.factor_h, s[2], a.factor_w, s[3]}, axes);
  return {text.reshape(repeated, call.outputs[0].shape)};
}

Hlos enlarged_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const UpsampleAttributes& a = nearest_only(call);
  const Shape& s = call.outputs[0].shape;
  const Hlo parts = text.reshape(in[0], {s[0], s[1], a.factor_h, s[2], a.factor_w, s[3]});
  return {text.reduce("add", parts, 0.0, 1u << 2 | 1u << 4)};
}

}  // namespace

void register_image_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kMaxPool, largest_of_windows);
  emitters.set(OpId::kMaxPoolGrad, largest_gradient);
  emitters.set(OpId::kAveragePool, mean_of_windows);
  emitters.set(OpId::kAveragePoolGrad, mean_gradient);
  emitters.set(OpId::kUpsample, enlarged);
  emitters.set(OpId::kUpsampleGrad, enlarged_gradient);
}

}  // namespace tutti::internal
