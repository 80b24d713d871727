// What two ranks tell each other first: 256 bytes each, before any other byte is read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tutti {

inline constexpr std::uint16_t kOldestWireVersion = 2;
inline constexpr std::uint16_t kNewestWireVersion = 2;

/// What both sides of a new connection say of themselves before anything else is read.
struct PeerHello {
  std::uint16_t oldest_version = kOldestWireVersion;
  std::uint16_t newest_version = kNewestWireVersion;
  std::string job = "worker";  // at most 15 characters: chief, worker, ps, evaluator, tool
  std::int32_t index = 0;
  std::uint32_t group_size = 0;       // that a rank connects for; 0 elsewhere
  std::uint64_t incarnation = 0;      // of a task: its restarts; of a rank: its run's number
  std::array<std::byte, 16> nonce{};  // new for each connection
  std::uint64_t layout = 0;           // byte order and sizes of this machine's numbers
  std::string job_id;                 // at most 47 characters; longer ones are hashed
  std::string build;                  // at most 31: "tutti 0.1.0"
  std::string numerics;               // at most 95: numerics_fingerprint(); "": not compared
  bool has_secret = false;            // whether the sender has one
  bool operator==(const PeerHello&) const = default;
  /// "worker 2 (tutti 0.1.0, wire versions 1 to 1)".
  std::string to_string() const;
};

inline constexpr std::size_t kPeerHelloBytes = 256;
using PeerHelloBytes = std::array<std::byte, kPeerHelloBytes>;

/// A hello of this process: version, build, layout, numerics and a new nonce.
PeerHello make_hello(std::string job, int index);
/// What a rank of a group says of itself; `run` is new in each run of the rank.
PeerHello make_rank_hello(int rank, int size, std::uint64_t run, std::string job_id);
/// The same for another connection.
PeerHello with_new_nonce(PeerHello hello);

/// Texts that are too long are cut. Little-endian.
PeerHelloBytes encode(const PeerHello& hello);
/// Nothing: no hello, but a stranger's bytes. Hellos of other versions are read, to be refused.
std::optional<PeerHello> decode_peer_hello(std::span<const std::byte, kPeerHelloBytes> bytes);
/// Whether these first bytes of a connection can still become a hello.
bool may_become_hello(std::span<const std::byte> bytes);

/// A job id as it is compared: itself if it is short plain text, else its hash.
std::string job_id_text(const std::string& id);

/// Why the two cannot work together, naming both sides' versions or fingerprints and the remedy;
/// nothing: they can. Either end comes to the same answer.
std::optional<std::string> incompatibility(const PeerHello& mine, const PeerHello& theirs);

namespace internal {
/// With bytes of the system that cannot be guessed.
void fill_random(std::span<std::byte> bytes);
/// A number that tells this run of something from every other one, drawn from the system; not 0.
std::uint64_t new_run_nonce();
}  // namespace internal

}  // namespace tutti
