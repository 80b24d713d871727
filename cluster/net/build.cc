// What a process says of its build and job, and what makes two of them incompatible.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/build.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cluster/net/handshake.h"
#include "core/hash.h"
#include "tutti/core/error.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

/// Differs between machines whose numbers lie differently in memory.
std::uint64_t layout_of_this_machine() {
  const std::array<std::byte, 8> order{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  return std::bit_cast<std::uint64_t>(order) | std::uint64_t{sizeof(void*)} << 32 |
         std::uint64_t{sizeof(long)} << 40;
}

/// Itself if it is short plain text, else its hash.
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
    return concat("the versions do not fit: ",
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
    return concat("numbers lie differently in memory: ",
                  both(concat("layout ", mine.layout()), theirs.layout()),
                  "; run the job on machines of one kind");
  }
  if (!mine.numerics().empty() && !theirs.numerics().empty() &&
      mine.numerics() != theirs.numerics()) {
    return concat(
        "their results would differ in bits: ",
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

}  // namespace tutti::internal
