// Elementwise operations and dropout in StableHLO: the formulas of cpu/elementwise_functions.h.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "tensor/op_checks.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

using Hlos = std::vector<Hlo>;
using Inputs = std::span<const Hlo>;

Hlo zeros_like(const Hlo& x) { return x.text->constant(0.0, x.shape, x.type); }

Hlo is_positive(const Hlo& x) { return x.text->compare("GT", x, zeros_like(x)); }

/// 0 where x <= 0: NaN stays.
Hlo relu_of(const Hlo& x) {
  const Hlo zero = zeros_like(x);
  return x.text->select(x.text->compare("LE", x, zero), zero, x);
}

template <class Function>
Hlos unary(HloText&, const OpCall&, Inputs in) {
  return {Function{}(in[0])};
}

template <class Function>
Hlos binary(HloText& text, const OpCall& call, Inputs in) {
  const Shape& shape = call.outputs[0].shape;
  return {Function{}(text.broadcast(in[0], shape), text.broadcast(in[1], shape))};
}

/// "stablehlo.NAME" of one operand, or of two.
#define TUTTI_HLO_NAMED(Function, name)                                                     \
  struct Function {                                                                         \
    Hlo operator()(const Hlo& x) const { return x.text->same(name, {x}); }                  \
    Hlo operator()(const Hlo& a, const Hlo& b) const { return a.text->same(name, {a, b}); } \
  }
TUTTI_HLO_NAMED(HloNegate, "negate");
TUTTI_HLO_NAMED(HloExp, "exponential");
TUTTI_HLO_NAMED(HloLog, "log");
TUTTI_HLO_NAMED(HloSqrt, "sqrt");
TUTTI_HLO_NAMED(HloRsqrt, "rsqrt");
TUTTI_HLO_NAMED(HloSign, "sign");
TUTTI_HLO_NAMED(HloFloor, "floor");
TUTTI_HLO_NAMED(HloCeil, "ceil");
TUTTI_HLO_NAMED(HloRound, "round_nearest_even");
TUTTI_HLO_NAMED(HloLog1p, "log_plus_one");
TUTTI_HLO_NAMED(HloExpm1, "exponential_minus_one");
TUTTI_HLO_NAMED(HloSin, "sine");
TUTTI_HLO_NAMED(HloCos, "cosine");
TUTTI_HLO_NAMED(HloSigmoid, "logistic");
TUTTI_HLO_NAMED(HloTanh, "tanh");
TUTTI_HLO_NAMED(HloNot, "not");
TUTTI_HLO_NAMED(HloAdd, "add");
TUTTI_HLO_NAMED(HloSubtract, "subtract");
TUTTI_HLO_NAMED(HloMultiply, "multiply");
TUTTI_HLO_NAMED(HloDivide, "divide");
TUTTI_HLO_NAMED(HloMaximum, "maximum");
TUTTI_HLO_NAMED(HloMinimum, "minimum");
TUTTI_HLO_NAMED(HloAnd, "and");
TUTTI_HLO_NAMED(HloOr, "or");
#undef TUTTI_HLO_NAMED

#define TUTTI_HLO_COMPARISON(Function, direction)                                                 \
  struct Function {                                                                               \
    Hlo operator()(const Hlo& a, const Hlo& b) const { return a.text->compare(direction, a, b); } \
  }
TUTTI_HLO_COMPARISON(HloEqual, "EQ");
TUTTI_HLO_COMPARISON(HloNotEqual, "NE");
TUTTI_HLO_COMPARISON(HloLess, "LT");
TUTTI_HLO_COMPARISON(HloLessEqual, "LE");
TUTTI_HLO_COMPARISON(HloGreater, "GT");
TUTTI_HLO_COMPARISON(HloGreaterEqual, "GE");
#undef TUTTI_HLO_COMPARISON

struct HloSquare {
  Hlo operator()(const Hlo& x) const { return x * x; }
};
struct HloAbs {
  Hlo operator()(const Hlo& x) const { return x.type == HloType::kU8 ? x : hlo_abs(x); }
};
struct HloReciprocal {
  Hlo operator()(const Hlo& x) const { return 1.0 / x; }
};
struct HloErf {
  Hlo operator()(const Hlo& x) const { return x.text->erf(x); }
};
struct HloRelu {
  Hlo operator()(const Hlo& x) const { return relu_of(x); }
};
struct HloSoftplus {
  Hlo operator()(const Hlo& x) const {
    return hlo_max(x, zeros_like(x)) + HloLog1p{}(hlo_exp(-hlo_abs(x)));
  }
};
struct HloElu {
  Hlo operator()(const Hlo& x) const { return x.text->select(is_positive(x), x, HloExpm1{}(x)); }
};

Hlo normal_cumulative(const Hlo& x) {
  return (x.text->erf(x * (std::numbers::sqrt2 / 2)) + 1.0) * 0.5;
}

struct HloGelu {
  Hlo operator()(const Hlo& x) const { return x * normal_cumulative(x); }
};

constexpr double kGeluScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, kGeluCubic = 0.044715;

Hlo gelu_tangent(const Hlo& x) { return HloTanh{}((x + x * x * x * kGeluCubic) * kGeluScale); }

struct HloGeluTanh {
  Hlo operator()(const Hlo& x) const { return x * 0.5 * (gelu_tangent(x) + 1.0); }
};
struct HloAddRelu {
  Hlo operator()(const Hlo& a, const Hlo& b) const { return relu_of(a + b); }
};

// Gradients: (dy, y), Gelu and GeluTanh (dy, x).
struct HloReluGrad {
  Hlo operator()(const Hlo& dy, const Hlo& y) const {
    return y.text->select(is_positive(y), dy, zeros_like(dy));
  }
};
struct HloSigmoidGrad {
  Hlo operator()(const Hlo& dy, const Hlo& y) const { return dy * (y * (1.0 - y)); }
};
struct HloTanhGrad {
  Hlo operator()(const Hlo& dy, const Hlo& y) const { return dy * (1.0 - y * y); }
};
struct HloEluGrad {
  Hlo operator()(const Hlo& dy, const Hlo& y) const {
    return y.text->select(is_positive(y), dy, dy * (y + 1.0));
  }
};
struct HloGeluGrad {
  Hlo operator()(const Hlo& dy, const Hlo& x) const {
    constexpr double kDensity = std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2;
    const Hlo density = hlo_exp(x * x * -0.5) * kDensity;
    return dy * (normal_cumulative(x) + x * density);
  }
};
struct HloGeluTanhGrad {
  Hlo operator()(const Hlo& dy, const Hlo& x) const {
    const Hlo t = gelu_tangent(x);
    const Hlo slope = (x * x * (3.0 * kGeluCubic) + 1.0) * kGeluScale;
    return dy * ((t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * slope);
  }
};

[[noreturn]] void refuse_integers(const OpCall& call) {
  fail(ErrorCode::kUnimplemented, who(call.op, call.where),
       ": not for integers within a step that XLA compiles; expected floating numbers, got ",
       call.inputs[0].dtype(), "; try cast()");
}

Hlos power(HloText& text, const OpCall& call, Inputs in) {
  if (!is_floating(in[0].type)) refuse_integers(call);
  const Shape& shape = call.outputs[0].shape;
  return {text.same("power", {text.broadcast(in[0], shape), text.broadcast(in[1], shape)})};
}

Hlos floor_divide(HloText& text, const OpCall& call, Inputs in) {
  if (!is_floating(in[0].type)) refuse_integers(call);
  const Shape& shape = call.outputs[0].shape;
  return {HloFloor{}(text.broadcast(in[0], shape) / text.broadcast(in[1], shape))};
}

/// The remainder, moved to the side of the divisor's sign.
Hlos floor_mod(HloText& text, const OpCall& call, Inputs in) {
  if (!is_floating(in[0].type)) refuse_integers(call);
  const Shape& shape = call.outputs[0].shape;
  const Hlo divisor = text.broadcast(in[1], shape);
  const Hlo rest = text.same("remainder", {text.broadcast(in[0], shape), divisor});
  const Hlo zero = zeros_like(rest);
  const Hlo differs =
      text.compare("NE", text.compare("LT", rest, zero), text.compare("LT", divisor, zero));
  const Hlo moves = text.same("and", {differs, text.compare("NE", rest, zero)});
  return {text.select(moves, rest + divisor, rest)};
}

Hlos cast_to(HloText& text, const OpCall& call, Inputs in) {
  const HloType to = hlo_type(call.attributes_as<CastAttributes>().to);
  if (to == HloType::kPred && in[0].type != HloType::kPred) {
    return {text.compare("NE", in[0], zeros_like(in[0]))};
  }
  return {text.convert(in[0], to)};
}

Hlos clip_between(HloText& text, const OpCall& call, Inputs in) {
  const auto& bounds = call.attributes_as<ClipAttributes>();
  const bool whole = !is_floating(in[0].type);
  const Hlo low =
      text.constant(whole ? std::ceil(bounds.low) : bounds.low, in[0].shape, in[0].type);
  const Hlo high =
      text.constant(whole ? std::floor(bounds.high) : bounds.high, in[0].shape, in[0].type);
  return {text.same("clamp", {low, in[0], high})};
}

Hlos choose(HloText& text, const OpCall& call, Inputs in) {
  const Shape& shape = call.outputs[0].shape;
  return {text.select(text.broadcast(in[0], shape), text.broadcast(in[1], shape),
                      text.broadcast(in[2], shape))};
}

// Dropout: Philox 4x32-10 on all blocks at once, the words of core/random.cc.

std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t hash_of_key(const RandomKey& key, std::uint64_t start) {
  std::uint64_t hash = start;
  for (const std::uint64_t field :
       {key.seed, static_cast<std::uint64_t>(key.purpose), key.a, key.b, key.c}) {
    hash = splitmix64(hash ^ splitmix64(field + start));
  }
  return hash;
}

/// The halves of the 64-bit product of 32-bit words and a number.
struct HloProduct {
  HloProduct(const Hlo& words, std::uint64_t factor) {
    HloText& text = *words.text;
    const Hlo product =
        text.convert(words, HloType::kU64) * text.bits(factor, words.shape, HloType::kU64);
    const Hlo shift = text.bits(32, words.shape, HloType::kU64);
    high = text.convert(text.same("shift_right_logical", {product, shift}), HloType::kU32);
    low = text.convert(product, HloType::kU32);
  }
  Hlo high, low;
};

Hlo operator^(const Hlo& a, const Hlo& b) { return a.text->same("xor", {a, b}); }

/// [4 blocks] random words. key: [4] int64, words_of_key().
Hlo philox_words(const Hlo& key, std::int64_t num_blocks) {
  HloText& text = *key.text;
  const Shape blocks{num_blocks};
  const Hlo words = text.convert(key, HloType::kU32);
  const auto word = [&](std::int64_t i) {
    return text.broadcast(text.reshape(text.slice(words, std::array{i}, {1}), {}), blocks);
  };
  Hlo key0 = word(0), key1 = word(1);
  Hlo w0 = text.iota(0, blocks, HloType::kU32), w1 = text.bits(0, blocks, HloType::kU32);
  Hlo w2 = word(2), w3 = word(3);
  const Hlo weyl0 = text.bits(0x9E3779B9, blocks, HloType::kU32);
  const Hlo weyl1 = text.bits(0xBB67AE85, blocks, HloType::kU32);
  for (int round = 0; round < 10; ++round) {
    const HloProduct product0(w0, 0xD2511F53), product1(w2, 0xCD9E8D57);
    w0 = product1.high ^ w1 ^ key0;
    w1 = product1.low;
    w2 = product0.high ^ w3 ^ key1;
    w3 = product0.low;
    key0 = key0 + weyl0;
    key1 = key1 + weyl1;
  }
  std::vector<Hlo> columns;
  for (const Hlo& each : {w0, w1, w2, w3}) columns.push_back(text.reshape(each, {num_blocks, 1}));
  return text.reshape(text.concatenate(columns, 1), {4 * num_blocks});
}

Hlos dropout_by_key(HloText& text, const OpCall& call, Inputs in) {
  const double rate = call.attributes_as<DropoutAttributes>().rate;
  const Hlo& x = in[0];
  const std::int64_t count = x.shape.num_elements();
  if (count == 0) return {x};
  const Hlo words = philox_words(in[1], (count + 3) / 4);
  const Hlo shift = text.bits(8, words.shape, HloType::kU32);
  const Hlo draws =
      text.convert(text.same("shift_right_logical", {words, shift}), HloType::kF32) * 0x1p-24;
  const Hlo own = text.reshape(text.slice(draws, std::array<std::int64_t, 1>{0}, {count}), x.shape);
  const Hlo drops =
      text.compare("LT", own, text.constant(static_cast<float>(rate), x.shape, HloType::kF32));
  return {text.select(drops, zeros_like(x), x * (1.0 / (1.0 - rate)))};
}

}  // namespace

std::array<std::int64_t, 4> words_of_key(const RandomKey& key) {
  const auto low = [](std::uint64_t value) {
    return static_cast<std::int64_t>(value & 0xFFFFFFFF);
  };
  const auto high = [](std::uint64_t value) { return static_cast<std::int64_t>(value >> 32); };
  const std::uint64_t first = hash_of_key(key, 0x243F6A8885A308D3);
  const std::uint64_t second = hash_of_key(key, 0x13198A2E03707344);
  return {low(first), high(first), low(second), high(second)};
}

Hlo activated(FusedActivation activation, const Hlo& x) {
  switch (activation) {
    case FusedActivation::kNone:
      return x;
    case FusedActivation::kRelu:
      return relu_of(x);
    case FusedActivation::kSigmoid:
      return HloSigmoid{}(x);
    case FusedActivation::kTanh:
      return HloTanh{}(x);
  }
  return x;
}

void register_elementwise_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kNegate, unary<HloNegate>);
  emitters.set(OpId::kExp, unary<HloExp>);
  emitters.set(OpId::kLog, unary<HloLog>);
  emitters.set(OpId::kSqrt, unary<HloSqrt>);
  emitters.set(OpId::kRsqrt, unary<HloRsqrt>);
  emitters.set(OpId::kSquare, unary<HloSquare>);
  emitters.set(OpId::kAbs, unary<HloAbs>);
  emitters.set(OpId::kSign, unary<HloSign>);
  emitters.set(OpId::kReciprocal, unary<HloReciprocal>);
  emitters.set(OpId::kFloor, unary<HloFloor>);
  emitters.set(OpId::kCeil, unary<HloCeil>);
  emitters.set(OpId::kRound, unary<HloRound>);
  emitters.set(OpId::kErf, unary<HloErf>);
  emitters.set(OpId::kLog1p, unary<HloLog1p>);
  emitters.set(OpId::kExpm1, unary<HloExpm1>);
  emitters.set(OpId::kSin, unary<HloSin>);
  emitters.set(OpId::kCos, unary<HloCos>);
  emitters.set(OpId::kRelu, unary<HloRelu>);
  emitters.set(OpId::kSigmoid, unary<HloSigmoid>);
  emitters.set(OpId::kTanh, unary<HloTanh>);
  emitters.set(OpId::kSoftplus, unary<HloSoftplus>);
  emitters.set(OpId::kElu, unary<HloElu>);
  emitters.set(OpId::kGelu, unary<HloGelu>);
  emitters.set(OpId::kGeluTanh, unary<HloGeluTanh>);
  emitters.set(OpId::kLogicalNot, unary<HloNot>);
  emitters.set(OpId::kCast, cast_to);
  emitters.set(OpId::kClip, clip_between);
  emitters.set(OpId::kAdd, binary<HloAdd>);
  emitters.set(OpId::kSubtract, binary<HloSubtract>);
  emitters.set(OpId::kMultiply, binary<HloMultiply>);
  emitters.set(OpId::kDivide, binary<HloDivide>);
  emitters.set(OpId::kMaximum, binary<HloMaximum>);
  emitters.set(OpId::kMinimum, binary<HloMinimum>);
  emitters.set(OpId::kPower, power);
  emitters.set(OpId::kAddRelu, binary<HloAddRelu>);
  emitters.set(OpId::kFloorDivide, floor_divide);
  emitters.set(OpId::kFloorMod, floor_mod);
  emitters.set(OpId::kEqual, binary<HloEqual>);
  emitters.set(OpId::kNotEqual, binary<HloNotEqual>);
  emitters.set(OpId::kLess, binary<HloLess>);
  emitters.set(OpId::kLessEqual, binary<HloLessEqual>);
  emitters.set(OpId::kGreater, binary<HloGreater>);
  emitters.set(OpId::kGreaterEqual, binary<HloGreaterEqual>);
  emitters.set(OpId::kLogicalAnd, binary<HloAnd>);
  emitters.set(OpId::kLogicalOr, binary<HloOr>);
  emitters.set(OpId::kReluGrad, binary<HloReluGrad>);
  emitters.set(OpId::kSigmoidGrad, binary<HloSigmoidGrad>);
  emitters.set(OpId::kTanhGrad, binary<HloTanhGrad>);
  emitters.set(OpId::kEluGrad, binary<HloEluGrad>);
  emitters.set(OpId::kGeluGrad, binary<HloGeluGrad>);
  emitters.set(OpId::kGeluTanhGrad, binary<HloGeluTanhGrad>);
  emitters.set(OpId::kWhere, choose);
  emitters.set(OpId::kDropout, dropout_by_key);
}

}  // namespace tutti::internal
