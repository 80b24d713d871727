// The fixed form of a hello, and what makes two of them incompatible.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/hello.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tutti/core/byte_codec.h"
#include "tutti/core/error.h"
#include "tutti/core/hash.h"
#include "tutti/tensor/numerics.h"

namespace tutti {
namespace {

constexpr std::array<char, 8> kMagic{'\x93', 't', 'u', 't', 't', 'i', '\r', '\n'};
constexpr std::size_t kJobWidth = 16, kJobIdWidth = 48, kBuildWidth = 32, kNumericsWidth = 96;
constexpr std::uint32_t kHasSecretFlag = 1;

/// Differs between machines whose numbers lie differently in memory.
std::uint64_t layout_of_this_machine() {
  const std::array<std::byte, 8> order{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  std::uint64_t layout = 0;
  std::memcpy(&layout, order.data(), sizeof(layout));
  return layout | std::uint64_t{sizeof(void*)} << 32 | std::uint64_t{sizeof(long)} << 40;
}

std::string versions(const PeerHello& hello) {
  return concat("wire versions ", hello.oldest_version, " to ", hello.newest_version);
}

std::string both(const PeerHello& mine, const std::string& of_mine, const PeerHello& theirs,
                 const std::string& of_theirs) {
  return concat(mine.job, " ", mine.index, " has ", of_mine, ", ", theirs.job, " ", theirs.index,
                " has ", of_theirs);
}

}  // namespace

std::string job_id_text(const std::string& id) {
  const bool is_plain = std::ranges::all_of(id, [](char c) { return c >= ' ' && c <= '~'; });
  if (id.size() < kJobIdWidth && is_plain) return id;
  Hasher hasher;
  hasher.update(id);
  return hasher.hex_digest();
}

std::string PeerHello::to_string() const {
  return concat(job, " ", index, " (", build, ", ", versions(*this), ")");
}

PeerHello make_hello(std::string job, int index) {
  PeerHello hello;
  hello.job = std::move(job);
  hello.index = index;
  hello.layout = layout_of_this_machine();
  hello.build = "tutti " TUTTI_VERSION;
  hello.numerics = numerics_fingerprint();
  return with_new_nonce(std::move(hello));
}

PeerHello make_rank_hello(int rank, int size, std::uint64_t run, std::string job_id) {
  PeerHello hello = make_hello("rank", rank);
  hello.group_size = static_cast<std::uint32_t>(size);
  hello.incarnation = run;
  hello.job_id = std::move(job_id);
  return hello;
}

PeerHello with_new_nonce(PeerHello hello) {
  internal::fill_random(hello.nonce);
  return hello;
}

void internal::fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::uint64_t internal::new_run_nonce() {
  std::uint64_t nonce = 0;
  while (nonce == 0) fill_random(std::as_writable_bytes(std::span(&nonce, 1)));
  return nonce;
}

PeerHelloBytes encode(const PeerHello& hello) {
  internal::ByteWriter writer;
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.number(hello.oldest_version);
  writer.number(hello.newest_version);
  writer.number(hello.has_secret ? kHasSecretFlag : std::uint32_t{0});
  writer.number(static_cast<std::uint32_t>(hello.index));
  writer.number(hello.group_size);
  writer.number(hello.incarnation);
  writer.raw(hello.nonce);
  writer.number(std::uint64_t{0});
  writer.number(hello.layout);
  writer.field(hello.job, kJobWidth);
  writer.field(job_id_text(hello.job_id), kJobIdWidth);
  writer.field(hello.build, kBuildWidth);
  writer.field(hello.numerics, kNumericsWidth);
  PeerHelloBytes bytes{};
  TUTTI_CHECK(writer.bytes().size() == bytes.size(), "a hello of ", writer.bytes().size());
  std::ranges::copy(writer.bytes(), bytes.begin());
  return bytes;
}

bool may_become_hello(std::span<const std::byte> bytes) {
  const std::size_t n = std::min(bytes.size(), kMagic.size());
  return n == 0 || std::memcmp(bytes.data(), kMagic.data(), n) == 0;
}

std::optional<PeerHello> decode_peer_hello(std::span<const std::byte, kPeerHelloBytes> bytes) {
  if (!may_become_hello(bytes)) return std::nullopt;
  internal::ByteReader reader(bytes.subspan(kMagic.size()));
  PeerHello hello;
  hello.oldest_version = reader.number<std::uint16_t>();
  hello.newest_version = reader.number<std::uint16_t>();
  const auto flags = reader.number<std::uint32_t>();
  hello.has_secret = (flags & kHasSecretFlag) != 0;
  hello.index = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  hello.group_size = reader.number<std::uint32_t>();
  hello.incarnation = reader.number<std::uint64_t>();
  std::ranges::copy(reader.raw(hello.nonce.size()), hello.nonce.begin());
  const auto reserved = reader.number<std::uint64_t>();
  hello.layout = reader.number<std::uint64_t>();
  hello.job = reader.field(kJobWidth);
  hello.job_id = reader.field(kJobIdWidth);
  hello.build = reader.field(kBuildWidth);
  hello.numerics = reader.field(kNumericsWidth);
  const bool is_sound = reader.is_complete() && reserved == 0 && flags <= kHasSecretFlag &&
                        hello.index >= 0 && !hello.job.empty() &&
                        hello.oldest_version <= hello.newest_version;
  if (!is_sound) return std::nullopt;
  return hello;
}

std::optional<std::string> incompatibility(const PeerHello& mine, const PeerHello& theirs) {
  if (mine.newest_version < theirs.oldest_version || theirs.newest_version < mine.oldest_version) {
    return concat("the versions do not fit: ",
                  both(mine, concat(mine.build, " with ", versions(mine)), theirs,
                       concat(theirs.build, " with ", versions(theirs))),
                  "; install one version of tutti on all machines");
  }
  if (mine.has_secret != theirs.has_secret) {
    return concat(
        "only one side has a job secret: ",
        both(mine, mine.has_secret ? "one" : "none", theirs, theirs.has_secret ? "one" : "none"),
        "; set TUTTI_JOB_SECRET_FILE for all processes, or for none");
  }
  if (job_id_text(mine.job_id) != job_id_text(theirs.job_id)) {
    return concat("two jobs met: ",
                  both(mine, concat("the job id '", job_id_text(mine.job_id), "'"), theirs,
                       concat("'", job_id_text(theirs.job_id), "'")),
                  "; give each job its own addresses, or all its processes one TUTTI_JOB_ID");
  }
  if (mine.layout != theirs.layout) {
    return concat("numbers lie differently in memory: ",
                  both(mine, concat("layout ", mine.layout), theirs, concat(theirs.layout)),
                  "; run the job on machines of one kind");
  }
  if (mine.group_size != theirs.group_size) {
    return concat("groups of different size met: ",
                  both(mine, concat(mine.group_size, " ranks"), theirs, concat(theirs.group_size)),
                  "; give all ranks one size, and each group a key prefix of its own");
  }
  if (!mine.numerics.empty() && !theirs.numerics.empty() && mine.numerics != theirs.numerics) {
    return concat("their results would differ in bits: ",
                  both(mine, concat("numerics '", mine.numerics, "'"), theirs,
                       concat("'", theirs.numerics, "'")),
                  "; run one build of tutti with one oneDNN, and set TUTTI_MAX_ISA=avx2 for all "
                  "processes when the processors differ");
  }
  return std::nullopt;
}

}  // namespace tutti
