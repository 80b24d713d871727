// The four messages of a handshake, taken and answered one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/core/byte_codec.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kReasonBytes = 768;
constexpr std::size_t kWelcomeMessageBytes = 8 + kReasonBytes;
constexpr std::uint64_t kAccepted = 0x31796573'69747574u;  // "tuti" "sey1"
constexpr std::uint64_t kRefusal = 0x316f6e20'69747574u;
constexpr std::string_view kNoPeer = "what answered is no tutti process";
constexpr std::string_view kServerLabel = "tutti handshake 1: server to client";
constexpr std::string_view kClientLabel = "tutti handshake 1: client to server";

std::string printable(std::string_view text) {
  std::string result(text.substr(0, text.find('\0')));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

/// Takes the same time wherever the first difference is.
bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
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

Handshake::Handshake(Side side, PeerHello own, JobSecret secret)
    : side_(side),
      own_([&] {
        own.has_secret = secret.is_set();
        return std::move(own);
      }()),
      secret_(std::move(secret)),
      own_bytes_(encode(own_)) {
  if (side_ == Side::kClient) send(own_bytes_);
}

/// The server gets a hello, then a proof; the client a hello with a proof, then a welcome.
std::size_t Handshake::bytes_wanted() const {
  if (side_ == Side::kServer) return stage_ == 0 ? kPeerHelloBytes : kProofBytes;
  return stage_ == 0 ? kPeerHelloBytes + kProofBytes : kWelcomeMessageBytes;
}

std::size_t Handshake::take(std::span<const std::byte> bytes) {
  std::size_t taken = 0;
  while (state_ == State::kRunning && !is_proven_) {
    const std::size_t n = std::min(bytes_wanted() - received_.size(), bytes.size() - taken);
    const auto piece = bytes.subspan(taken, n);
    received_.insert(received_.end(), piece.begin(), piece.end());
    taken += n;
    if (stage_ == 0 && !may_become_hello(received_)) {
      take_for_stranger();
    } else if (received_.size() == bytes_wanted()) {
      take_message();
      received_.clear();
    } else if (n == 0) {
      break;
    }
  }
  return taken;
}

void Handshake::take_message() {
  if (side_ == Side::kServer) {
    stage_ == 0 ? answer_hello() : take_proof_of_client();
  } else {
    stage_ == 0 ? take_answer() : take_welcome();
  }
  ++stage_;
}

void Handshake::take_for_stranger() {
  refuse(std::string(kNoPeer));
  state_ = State::kStranger;
}

/// False: there is no proof to be made or judged, for the two cannot talk with each other. Later
/// versions may prove themselves in another way.
bool Handshake::take_hello() {
  std::copy_n(received_.begin(), kPeerHelloBytes, peer_bytes_.begin());
  peer_ = decode_peer_hello(peer_bytes_);
  if (!peer_) {
    take_for_stranger();
    return false;
  }
  if (peer_->oldest_version <= own_.newest_version &&
      own_.oldest_version <= peer_->newest_version && peer_->has_secret == own_.has_secret) {
    return true;
  }
  const bool is_client = side_ == Side::kClient;  // both say it in the server's words
  refuse(incompatibility(is_client ? *peer_ : own_, is_client ? own_ : *peer_)
             .value_or("the versions do not fit"));
  return false;
}

/// A client that cannot talk with this server sees in its hello why; the place of the proof stays
/// empty then.
void Handshake::answer_hello() {
  const bool can_talk = take_hello();
  if (state_ == State::kStranger) return;
  send(own_bytes_);
  send(can_talk ? proof(kServerLabel) : Digest256{});
}

void Handshake::take_proof_of_client() {
  if (!is_equal(proof(kClientLabel), received_)) {
    refuse(concat(peer_->to_string(),
                  " does not know this job's secret; give all processes the same ",
                  "TUTTI_JOB_SECRET_FILE"));
    send_welcome(false, concat("another job's secret, or a damaged connection; give all processes ",
                               "the same TUTTI_JOB_SECRET_FILE"));
  } else if (const auto reason = incompatibility(own_, *peer_)) {
    is_peer_proven_ = true;
    refuse(*reason);
    send_welcome(false, *reason);
  } else {
    is_proven_ = true;
  }
}

void Handshake::decide(const std::string& refusal) {
  TUTTI_CHECK(is_proven_ && state_ == State::kRunning, "a decision before the proof");
  if (refusal.empty()) {
    state_ = State::kDone;
  } else {
    refuse(refusal);
  }
  send_welcome(refusal.empty(), refusal);
}

void Handshake::take_answer() {
  if (!take_hello()) return;
  const auto given = std::span(received_).subspan(kPeerHelloBytes);
  if (!is_equal(proof(kServerLabel), given)) {
    refuse(concat(peer_->to_string(),
                  " does not know this job's secret; give all processes the same ",
                  "TUTTI_JOB_SECRET_FILE"));
    return;
  }
  is_peer_proven_ = true;
  send(proof(kClientLabel));  // also where it ends here: then the server can say so, too
  if (const auto reason = incompatibility(own_, *peer_)) refuse(*reason);
}

bool Handshake::is_final() const {
  const auto own = decode_peer_hello(own_bytes_);  // with texts as short as the peer's
  return state_ == State::kRefused && is_peer_proven_ && own->job_id == peer_->job_id &&
         incompatibility(own_, *peer_).has_value();
}

void Handshake::take_welcome() {
  internal::ByteReader reader(received_);
  const auto word = reader.number<std::uint64_t>();
  const auto rest = reader.raw(kReasonBytes);
  const std::string text = printable({reinterpret_cast<const char*>(rest.data()), rest.size()});
  if (word == kAccepted) {
    state_ = State::kDone;
  } else {
    refuse(word == kRefusal ? text : std::string(kNoPeer));
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

void Handshake::send_welcome(bool accepted, std::string_view reason) {
  internal::ByteWriter writer;
  writer.number(accepted ? kAccepted : kRefusal);
  writer.field(reason, kReasonBytes);
  send(writer.bytes());
}

std::vector<std::byte> Handshake::bytes_to_send() { return std::exchange(to_send_, {}); }

}  // namespace tutti
