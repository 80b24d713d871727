// The four messages of a handshake, taken and answered one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>

#include "core/byte_codec.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

constexpr std::array<char, 8> kMagic{'\x93', 't', 'u', 't', 't', 'i', '3', '\n'};
constexpr std::size_t kNonceBytes = 16;
constexpr std::byte kAccepted{1}, kRefusal{0};
constexpr std::string_view kServerLabel = "tutti handshake 3: server to client";
constexpr std::string_view kClientLabel = "tutti handshake 3: client to server";

std::vector<std::byte> with_new_nonce(const RankHello& hello) {
  ByteWriter writer;
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.number(static_cast<std::uint32_t>(hello.rank));
  writer.number(hello.run);
  std::array<std::byte, kNonceBytes> nonce{};
  fill_random(nonce);
  writer.raw(nonce);
  return writer.bytes();
}

/// Of as many bytes as have come.
bool may_become_hello(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(kMagic));
  const std::size_t n = std::min(bytes.size(), magic.size());
  return std::ranges::equal(bytes.first(n), magic.first(n));
}

}  // namespace

Digest256 hmac_sha256(std::span<const std::byte> key,
                      std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::uint8_t> message;
  for (const auto part : parts) {
    for (const std::byte byte : part) message.push_back(std::to_integer<std::uint8_t>(byte));
  }
  Digest256 digest{};
  // A null pointer would stand for the key of an earlier call.
  const void* const start = key.empty() ? static_cast<const void*>("") : key.data();
  if (::HMAC(::EVP_sha256(), start, static_cast<int>(key.size()), message.data(), message.size(),
             reinterpret_cast<unsigned char*>(digest.data()), nullptr) == nullptr) {
    fail(ErrorCode::kInternal, "handshake: OpenSSL's HMAC-SHA256 failed");
  }
  return digest;
}

Handshake::Handshake(Side side, RankHello own, JobSecret secret)
    : side_(side), own_(own), secret_(std::move(secret)), own_bytes_(with_new_nonce(own)) {
  if (side_ == Side::kClient) send(own_bytes_);
}

/// The server gets a hello, then a proof; the client a hello with a proof, then a verdict.
std::size_t Handshake::bytes_wanted() const {
  if (side_ == Side::kServer) return stage_ == 0 ? kRankHelloBytes : kProofBytes;
  return stage_ == 0 ? kRankHelloBytes + kProofBytes : 1;
}

std::size_t Handshake::take(std::span<const std::byte> bytes) {
  std::size_t taken = 0;
  const auto is_over = [&] {
    return state_ != State::kRunning || (side_ == Side::kServer && is_proven_);
  };
  while (!is_over()) {
    const std::size_t n = std::min(num_awaited(), bytes.size() - taken);
    const auto piece = bytes.subspan(taken, n);
    received_.insert(received_.end(), piece.begin(), piece.end());
    taken += n;
    if (stage_ == 0 && !may_become_hello(received_)) {
      refuse("what answered is no tutti process of this version");
      state_ = State::kStranger;
    } else if (received_.size() == bytes_wanted()) {
      take_message();
      received_.clear();
    } else {
      break;
    }
  }
  return taken;
}

void Handshake::take_message() {
  const auto given = std::span<const std::byte>(received_);
  if (stage_++ == 0) {
    if (!take_hello()) return;
    if (side_ == Side::kServer) {
      send(own_bytes_);
      send(proof(kServerLabel));
    } else {
      take_proof(kServerLabel, given.subspan(kRankHelloBytes));
      if (is_proven_) send(proof(kClientLabel));
    }
  } else if (side_ == Side::kServer) {
    take_proof(kClientLabel, given);
    if (!is_proven_) send({&kRefusal, 1});
  } else if (given[0] == kAccepted) {
    state_ = State::kDone;
  } else {
    refuse(concat("this is not the rank ", own_.rank, " that the store has"));
  }
}

bool Handshake::take_hello() {
  peer_bytes_.assign(received_.begin(), received_.begin() + kRankHelloBytes);
  ByteReader reader(std::span<const std::byte>(peer_bytes_).subspan(kMagic.size()));
  RankHello peer;
  peer.rank = static_cast<int>(reader.number<std::uint32_t>());
  peer.run = reader.number<std::uint64_t>();
  peer_ = peer;
  if (peer.rank >= 0) return true;
  refuse("what answered is no rank");
  state_ = State::kStranger;
  return false;
}

/// Compared in a time that does not tell where the first difference is.
void Handshake::take_proof(std::string_view label, std::span<const std::byte> given) {
  const Digest256 expected = proof(label);
  is_proven_ = ::CRYPTO_memcmp(expected.data(), given.data(), kProofBytes) == 0;
  if (is_proven_) return;
  refuse(concat("rank ", peer_->rank, " does not know this job's secret; give all processes the ",
                "same TUTTI_JOB_SECRET_FILE"));
}

void Handshake::decide(bool accepted) {
  TUTTI_CHECK(is_proven_ && state_ == State::kRunning, "a decision before the proof");
  send({accepted ? &kAccepted : &kRefusal, 1});
  if (accepted) {
    state_ = State::kDone;
  } else {
    refuse(concat("this is not the rank ", peer_->rank, " that the store has"));
  }
}

Digest256 Handshake::proof(std::string_view label) const {
  const bool is_client = side_ == Side::kClient;
  return hmac_sha256(secret_.bytes(),
                     {std::as_bytes(std::span(label)), is_client ? own_bytes_ : peer_bytes_,
                      is_client ? peer_bytes_ : own_bytes_});
}

void Handshake::refuse(std::string reason) {
  state_ = State::kRefused;
  reason_ = std::move(reason);
}

void Handshake::send(std::span<const std::byte> bytes) {
  to_send_.insert(to_send_.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> Handshake::bytes_to_send() { return std::exchange(to_send_, {}); }

}  // namespace tutti::internal
