// XXH3-128 from xxHash and CRC32C from ISA-L, both compiled into this file alone.
// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <isa-l/crc.h>
#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cinttypes>
#include <cstdio>

namespace tutti {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void Hasher::update(std::string_view text) { update(std::as_bytes(std::span(text))); }

std::string Hasher::hex_digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64,
                static_cast<std::uint64_t>(hash.high64), static_cast<std::uint64_t>(hash.low64));
  return text;
}

std::string hash_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex_digest();
}

std::string hash_of(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

}  // namespace tutti

namespace tutti::internal {

// CRC32C, computed by ISA-L.

std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // ISA-L's lengths are ints
  crc = ~crc;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    auto* data = reinterpret_cast<const unsigned char*>(part.data());
    crc = crc32_iscsi(const_cast<unsigned char*>(data), static_cast<int>(part.size()), crc);
    bytes = bytes.subspan(part.size());
  }
  return ~crc;
}

}  // namespace tutti::internal
