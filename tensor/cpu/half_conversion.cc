// Branch-free conversions between float and 16-bit types, which the compiler vectorizes.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/half_conversion.h"

#include <bit>

#include "tensor/cpu/vectorized.h"

namespace tutti {
namespace {

using internal::vectorized;
using std::bit_cast;

constexpr std::uint32_t kSign = 0x80000000u;
constexpr std::uint32_t kInfinity = 0x7f800000u;  // infinity of float
constexpr std::uint32_t kRebias = 112u << 23;  // float's exponent bias (127) minus float16's (15)

[[gnu::always_inline]] inline float wide(BFloat16 half) {
  return bit_cast<float>(static_cast<std::uint32_t>(half.bits) << 16);
}

[[gnu::always_inline]] inline float wide(Float16 half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  const std::uint32_t finite = (magnitude << 13) + kRebias;
  const std::uint32_t normal = magnitude >= 0x7c00u ? finite + kRebias : finite;
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  return bit_cast<float>(sign | (magnitude < 0x400u ? bit_cast<std::uint32_t>(denormal) : normal));
}

/// Returns `bits` without the lower `kDropped` bits, rounded to nearest, ties to even.
template <int kDropped>
[[gnu::always_inline]] inline std::uint32_t rounded(std::uint32_t bits) {
  return (bits + ((1u << (kDropped - 1)) - 1u) + (bits >> kDropped & 1u)) >> kDropped;
}

[[gnu::always_inline]] inline void narrow_one(float value, BFloat16& to) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & ~kSign) > kInfinity;
  to.bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded<16>(bits));
}

[[gnu::always_inline]] inline void narrow_one(float value, Float16& to) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSign;
  const std::uint32_t normal = rounded<13>(magnitude - kRebias);
  // Adding 1/2 aligns a denormal's bits with the end of the fraction, so that the processor rounds
  // them.
  const std::uint32_t denormal =
      bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - bit_cast<std::uint32_t>(0.5f);
  std::uint32_t half = magnitude < kRebias + (1u << 23) ? denormal : normal;
  half = magnitude >= kRebias + (31u << 23) ? 0x7c00u : half;
  half = magnitude > kInfinity ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : half;
  to.bits = static_cast<std::uint16_t>((bits & kSign) >> 16 | half);
}

template <class Visitor>
void visit_half(DType dtype, const char* who, const Visitor& visitor) {
  TUTTI_CHECK(is_half(dtype), who, ": expected bfloat16 or float16, got ", dtype);
  dtype == DType::kBFloat16 ? visitor.template operator()<BFloat16>()
                            : visitor.template operator()<Float16>();
}

}  // namespace

void widen(DType from_type, const std::byte* from, float* to, std::size_t count) {
  visit_half(from_type, "widen", [&]<class T>() {
    vectorized([=]() __attribute__((always_inline)) {
      const T* __restrict in = reinterpret_cast<const T*>(from);
      float* __restrict out = to;
      for (std::size_t i = 0; i < count; ++i) out[i] = wide(in[i]);
    });
  });
}

void narrow(const float* from, DType to_type, std::byte* to, std::size_t count) {
  visit_half(to_type, "narrow", [&]<class T>() {
    vectorized([=]() __attribute__((always_inline)) {
      const float* __restrict in = from;
      T* __restrict out = reinterpret_cast<T*>(to);
      for (std::size_t i = 0; i < count; ++i) narrow_one(in[i], out[i]);
    });
  });
}

Tensor widened(const Tensor& tensor) {
  if (!is_half(tensor.dtype())) return tensor;
  MutableTensor wide(tensor.shape(), DType::kFloat32, tensor.device());
  widen(tensor.dtype(), tensor.bytes().data(), wide.span<float>().data(),
        static_cast<std::size_t>(tensor.num_elements()));
  return wide.freeze();
}

Tensor narrowed(const Tensor& tensor, DType dtype) {
  MutableTensor half(tensor.shape(), dtype, tensor.device());
  narrow(tensor.host_span<float>().data(), dtype, half.data(),
         static_cast<std::size_t>(tensor.num_elements()));
  return half.freeze();
}

}  // namespace tutti
