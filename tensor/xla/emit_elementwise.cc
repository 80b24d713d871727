// Elementwise operations in StableHLO, using the formulas in cpu/elementwise_functions.h, and
// dropout.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/op_checks.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

[[noreturn]] void refuse_integers(const OpCall& call) {
  fail(ErrorCode::kUnimplemented, who(call.op, call.where),
       ": expected a floating-point type in a step that XLA compiles, got ", call.inputs[0].dtype(),
       "; call cast()");
}

/// Emitters that apply the scalar formulas to values of an XLA program (Hlo).
struct FormulaEmitters {
  template <class Formula, class Types>
  void unary(OpId op, Types) {
    emitters.set(op, [](HloText&, const OpCall&, HloInputs in) { return Hlos{Formula{}(in[0])}; });
  }
  template <class Formula, class Types>
  void binary(OpId op, Types) {
    emitters.set(op, [](HloText& text, const OpCall& call, HloInputs in) {
      constexpr bool kFloatsOnly = std::is_same_v<Formula, Power> ||
                                   std::is_same_v<Formula, FloorDivide> ||
                                   std::is_same_v<Formula, FloorMod>;
      if (kFloatsOnly && !is_floating(in[0].type)) refuse_integers(call);
      const Shape& shape = call.outputs[0].shape;
      return Hlos{Formula{}(text.broadcast(in[0], shape), text.broadcast(in[1], shape))};
    });
  }
  HloEmitters& emitters;
};

Hlos cast_to(HloText& text, const OpCall& call, HloInputs in) {
  const HloType to = hlo_type(call.attributes_as<CastAttributes>().to);
  if (to == HloType::kPred && in[0].type != HloType::kPred) {
    return {in[0] != 0.0};
  }
  return {text.convert(in[0], to)};
}

Hlos clip_between(HloText& text, const OpCall& call, HloInputs in) {
  const auto& bounds = call.attributes_as<ClipAttributes>();
  const bool whole = !is_floating(in[0].type);
  const Hlo low =
      text.constant(whole ? std::ceil(bounds.low) : bounds.low, in[0].shape, in[0].type);
  const Hlo high =
      text.constant(whole ? std::floor(bounds.high) : bounds.high, in[0].shape, in[0].type);
  return {text.same("clamp", {low, in[0], high})};
}

Hlos choose_elements(HloText& text, const OpCall& call, HloInputs in) {
  const Shape& shape = call.outputs[0].shape;
  return {text.select(text.broadcast(in[0], shape), text.broadcast(in[1], shape),
                      text.broadcast(in[2], shape))};
}

// Dropout: Philox 4x32-10 on all blocks at once, which gives the same words as core/random.cc.

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

/// High and low halves of the 64-bit products of 32-bit words and a factor.
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

/// Returns [4 * num_blocks] random words. `key` [4] int64: the result of words_of_key().
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

Hlos dropout_by_key(HloText& text, const OpCall& call, HloInputs in) {
  const double rate = call.attributes_as<DropoutAttributes>().rate;
  const Hlo& x = in[0];
  const std::int64_t count = x.shape.num_elements();
  if (count == 0) return {x};
  const Hlo words = philox_words(in[1], (count + 3) / 4);
  const Hlo shift = text.bits(8, words.shape, HloType::kU32);
  const Hlo draws =
      text.convert(text.same("shift_right_logical", {words, shift}), HloType::kF32) * 0x1p-24;
  const Hlo own = text.reshape(text.slice(draws, std::array<std::int64_t, 1>{0}, {count}), x.shape);
  return {choose(own < static_cast<float>(rate), 0.0, x * (1.0 / (1.0 - rate)))};
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

void register_elementwise_emitters(HloEmitters& emitters) {
  list_elementwise_formulas(FormulaEmitters{emitters}, ElementTypes<>(), ElementTypes<>());
  emitters.set(OpId::kCast, cast_to);
  emitters.set(OpId::kClip, clip_between);
  emitters.set(OpId::kWhere, choose_elements);
  emitters.set(OpId::kDropout, dropout_by_key);
}

}  // namespace tutti::internal
