// Implements the handshake, announcements of ranks, and the compatibility check for two builds.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "core/byte_codec.h"
#include "core/hash.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/tensor/numerics.h"

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

/// Returns true if the bytes received so far match the magic number.
bool may_become_hello(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(kMagic));
  const std::size_t n = std::min(bytes.size(), magic.size());
  return std::ranges::equal(bytes.first(n), magic.first(n));
}

using MacContext = std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)>;

MacContext new_hmac_sha256() {
  EVP_MAC* const hmac = ::EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  MacContext context(::EVP_MAC_CTX_new(hmac), ::EVP_MAC_CTX_free);
  ::EVP_MAC_free(hmac);
  std::string digest = "SHA256";
  const OSSL_PARAM parameters[] = {
      ::OSSL_PARAM_construct_utf8_string("digest", digest.data(), digest.size()),
      ::OSSL_PARAM_construct_end()};
  if (context) (void)::EVP_MAC_CTX_set_params(context.get(), parameters);
  return context;
}

}  // namespace

Digest256 hmac_sha256(std::span<const std::byte> key,
                      std::initializer_list<std::span<const std::byte>> parts) {
  // OpenSSL looks up algorithms by name, which takes longer than hashing a short message.
  static const MacContext kTemplate = new_hmac_sha256();
  const auto bytes = [](const std::byte* data) {
    return reinterpret_cast<const unsigned char*>(data);
  };
  const MacContext context(::EVP_MAC_CTX_dup(kTemplate.get()), ::EVP_MAC_CTX_free);
  // An empty key must not be a null pointer, which would select the key of an earlier call.
  const std::byte none{};
  bool is_good =
      context != nullptr && ::EVP_MAC_init(context.get(), bytes(key.empty() ? &none : key.data()),
                                           key.size(), nullptr) == 1;
  for (const auto part : parts) {
    is_good = is_good && ::EVP_MAC_update(context.get(), bytes(part.data()), part.size()) == 1;
  }
  Digest256 digest{};
  std::size_t length = 0;
  is_good =
      is_good && ::EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(digest.data()),
                                 &length, digest.size()) == 1;
  if (!is_good || length != digest.size()) {
    fail(ErrorCode::kInternal, "handshake: OpenSSL's HMAC-SHA256 failed");
  }
  return digest;
}

Handshake::Handshake(Side side, RankHello own, JobSecret secret)
    : side_(side), own_(own), secret_(std::move(secret)), own_bytes_(with_new_nonce(own)) {
  if (side_ == Side::kClient) send(own_bytes_);
}

/// The server receives a hello, then a proof; the client receives a hello with a proof, then a
/// verdict.
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
      refuse("the process that answered is not a rank of this version of tutti");
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
    if (!consume_hello()) return;
    if (side_ == Side::kServer) {
      send(own_bytes_);
      send(proof(kServerLabel));
    } else {
      accept_proof(kServerLabel, given.subspan(kRankHelloBytes));
      if (is_proven_) send(proof(kClientLabel));
    }
  } else if (side_ == Side::kServer) {
    accept_proof(kClientLabel, given);
    if (!is_proven_) send({&kRefusal, 1});
  } else if (given[0] == kAccepted) {
    state_ = State::kDone;
  } else {
    refuse(concat("the store does not list this process as rank ", own_.rank));
  }
}

bool Handshake::consume_hello() {
  peer_bytes_.assign(received_.begin(), received_.begin() + kRankHelloBytes);
  ByteReader reader(std::span<const std::byte>(peer_bytes_).subspan(kMagic.size()));
  RankHello peer;
  peer.rank = static_cast<int>(reader.number<std::uint32_t>());
  peer.run = reader.number<std::uint64_t>();
  peer_ = peer;
  if (peer.rank >= 0) return true;
  refuse("the process that answered is not a rank");
  state_ = State::kStranger;
  return false;
}

/// Compares the proof in constant time, which does not reveal the position of the first difference.
void Handshake::accept_proof(std::string_view label, std::span<const std::byte> given) {
  const Digest256 expected = proof(label);
  is_proven_ = ::CRYPTO_memcmp(expected.data(), given.data(), kProofBytes) == 0;
  if (is_proven_) return;
  refuse(concat("rank ", peer_->rank, " does not know this job's secret; give all processes the ",
                "same TUTTI_JOB_SECRET_FILE"));
}

void Handshake::decide(bool accepted) {
  TUTTI_CHECK(is_proven_ && state_ == State::kRunning, "expected decide() after the proof");
  send({accepted ? &kAccepted : &kRefusal, 1});
  if (accepted) {
    state_ = State::kDone;
  } else {
    refuse(concat("the store does not list this process as rank ", peer_->rank));
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

// Description of a process's build and job, and the compatibility check for two descriptions.

namespace {

/// Returns a number that differs between machines that lay out numbers differently in memory.
std::uint64_t layout_of_this_machine() {
  const std::array<std::byte, 8> order{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  return std::bit_cast<std::uint64_t>(order) | std::uint64_t{sizeof(void*)} << 32 |
         std::uint64_t{sizeof(long)} << 40;
}

/// Returns the id if it is short plain text, otherwise its hash.
std::string job_id_text(const std::string& id) {
  constexpr std::size_t kShort = 48;
  const bool is_plain = std::ranges::all_of(id, [](char c) { return c >= ' ' && c <= '~'; });
  if (id.size() < kShort && is_plain) return id;
  Hasher hasher;
  hasher.update(id);
  return hasher.hex_digest();
}

std::string protocols(const v1::Build& build) {
  return concat("protocol versions ", build.oldest_protocol(), " to ", build.newest_protocol());
}

}  // namespace

v1::Build make_build(const std::string& job_id, const JobSecret& secret) {
  v1::Build build;
  build.set_version("tutti " TUTTI_VERSION);
  build.set_oldest_protocol(kOldestProtocol);
  build.set_newest_protocol(kNewestProtocol);
  build.set_layout(layout_of_this_machine());
  build.set_numerics(numerics_fingerprint());
  build.set_job_id(job_id_text(job_id));
  if (secret.is_set()) {
    constexpr std::string_view kLabel = "tutti job";
    const Digest256 digest = hmac_sha256(secret.bytes(), {std::as_bytes(std::span(kLabel))});
    build.set_secret_tag(digest.data(), 16);
  }
  return build;
}

std::string incompatibility(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                            std::string_view whose) {
  const auto both = [&](const auto& of_mine, const auto& of_theirs) {
    return concat(who, " has ", of_mine, ", ", whose, " has ", of_theirs);
  };
  if (mine.newest_protocol() < theirs.oldest_protocol() ||
      theirs.newest_protocol() < mine.oldest_protocol()) {
    return concat("the versions are incompatible: ",
                  both(concat(mine.version(), " with ", protocols(mine)),
                       concat(theirs.version(), " with ", protocols(theirs))),
                  "; install one version of tutti on all machines");
  }
  const bool have_secrets[] = {!mine.secret_tag().empty(), !theirs.secret_tag().empty()};
  if (have_secrets[0] != have_secrets[1]) {
    return concat("only one side has a job secret: ",
                  both(have_secrets[0] ? "one" : "none", have_secrets[1] ? "one" : "none"),
                  "; set TUTTI_JOB_SECRET_FILE for all processes, or for none");
  }
  if (mine.job_id() != theirs.job_id()) {
    return concat(
        "two jobs met: ",
        both(concat("the job id '", mine.job_id(), "'"), concat("'", theirs.job_id(), "'")),
        "; give each job its own addresses, or all its processes one TUTTI_JOB_ID");
  }
  if (mine.layout() != theirs.layout()) {
    return concat("memory layouts of numbers differ: ",
                  both(concat("layout ", mine.layout()), theirs.layout()),
                  "; run the job on machines of the same kind");
  }
  if (!mine.numerics().empty() && !theirs.numerics().empty() &&
      mine.numerics() != theirs.numerics()) {
    return concat(
        "their results would not be bit-identical: ",
        both(concat("numerics '", mine.numerics(), "'"), concat("'", theirs.numerics(), "'")),
        "; run one build of tutti with one oneDNN, and set TUTTI_MAX_ISA=avx2 for all "
        "processes when the processors differ");
  }
  return "";
}

std::string refusal_of(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                       std::string_view whose) {
  const std::string reason = incompatibility(mine, who, theirs, whose);
  if (!reason.empty() || theirs.secret_tag() == mine.secret_tag()) return reason;
  return concat(whose, " does not know this job's secret (that of ", who,
                "); give all its processes one TUTTI_JOB_SECRET_FILE");
}

// Encoding of announcements, and the compatibility check for two ranks.

std::string Announcement::address() const {
  return (endpoint.host.empty() ? local : endpoint).to_string();
}

std::string to_text(const Announcement& announcement) {
  v1::RankAnnouncement message;
  message.set_run(announcement.run);
  message.set_machine(announcement.machine);
  if (!announcement.endpoint.host.empty()) message.set_address(announcement.endpoint.to_string());
  message.set_local(announcement.local.host);
  message.set_group_size(static_cast<std::uint32_t>(announcement.group_size));
  *message.mutable_build() = announcement.build;
  return message.SerializeAsString();
}

std::optional<Announcement> parse_announcement(const std::string& text) {
  v1::RankAnnouncement message;
  if (!message.ParseFromString(text) || !message.has_build()) return std::nullopt;
  Announcement announcement{
      message.run(),  message.machine(), {}, {}, static_cast<int>(message.group_size()),
      message.build()};
  const auto read = [](const std::string& address, bool is_local, Endpoint& endpoint) {
    if (address.empty()) return true;
    const auto parsed = parse_endpoint(address);
    if (parsed) endpoint = *parsed;
    return parsed && parsed->is_local() == is_local;
  };
  const bool is_good = read(message.address(), false, announcement.endpoint) &&
                       read(message.local(), true, announcement.local) &&
                       (!message.address().empty() || !message.local().empty());
  return is_good ? std::optional(announcement) : std::nullopt;
}

std::string misfit_of(const Announcement& mine, int rank, const Announcement& theirs, int other) {
  const bool fits_in_size = mine.group_size == theirs.group_size;
  if (fits_in_size && refusal_of(mine.build, "", theirs.build, "").empty()) return "";
  const std::string who = concat("rank ", rank), whose = concat("rank ", other);
  const std::string reason = refusal_of(mine.build, who, theirs.build, whose);
  if (!reason.empty() || fits_in_size) return reason;
  return concat("group sizes differ: ", who, " has ", mine.group_size, " ranks, ", whose, " has ",
                theirs.group_size,
                "; give all ranks the same size, and each group its own key prefix");
}

}  // namespace tutti::internal
