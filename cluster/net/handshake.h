// Two ranks prove to each other that they belong to one job: bytes in, bytes out.
// SPDX-License-Identifier: Apache-2.0
//
// The client sends its hello; the server answers with its own and a proof; the client sends a
// proof; the server ends it with a verdict. A *hello* is a magic number, rank, run and a nonce that
// is new each time. A *proof* is HMAC-SHA256 with the job's secret over both hellos and a label
// that differs per direction, so neither a recording nor a reflection is one. All else that ranks
// want to know of each other is in the store (Announcement), by rank and run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/net/socket.h"
#include "job.pb.h"
#include "tutti/cluster/net/job_secret.h"

namespace tutti::internal {

using Digest256 = std::array<std::byte, 32>;
/// HMAC-SHA256 (RFC 2104) over the parts, one after the other. Throws kInternal.
Digest256 hmac_sha256(std::span<const std::byte> key,
                      std::initializer_list<std::span<const std::byte>> parts);

/// The number of a rank, and its run as it has published it.
struct RankHello {
  int rank = 0;
  std::uint64_t run = 0;
  bool operator==(const RankHello&) const = default;
};
inline constexpr std::size_t kRankHelloBytes = 36;  // with magic number and nonce
inline constexpr std::size_t kProofBytes = 32;

/// One side of a handshake. Give it what arrives, send what it wants sent. It reads at most
/// kLongestHandshake bytes in all and keeps no more. Threads: one at a time.
class Handshake {
 public:
  enum class Side { kClient, kServer };
  enum class State {
    kRunning,
    kDone,      // both sides are authenticated
    kRefused,   // by this side or the other: reason() says why, in words for the user
    kStranger,  // no rank of this version of tutti: drop the connection without a word
  };

  Handshake(Side side, RankHello own, JobSecret secret);

  /// How many bytes of the other side come next: what lies behind them is not the handshake's.
  std::size_t num_awaited() const { return bytes_wanted() - received_.size(); }
  /// Takes `bytes` and returns how many of them belonged to the handshake; the rest comes after it.
  std::size_t take(std::span<const std::byte> bytes);
  /// What is to be sent now, also after it was refused.
  std::vector<std::byte> bytes_to_send();

  State state() const { return state_; }
  /// The hello of the other side, once it has come.
  const std::optional<RankHello>& peer() const { return peer_; }
  const std::string& reason() const { return reason_; }
  /// Whether the other side knows the secret. The server's state stays kRunning until decide().
  bool is_proven() const { return is_proven_; }
  /// The server's, once: lets the peer in, or refuses it.
  void decide(bool accepted);

 private:
  void take_message();
  bool take_hello();
  void take_proof(std::string_view label, std::span<const std::byte> given);
  std::size_t bytes_wanted() const;
  Digest256 proof(std::string_view label) const;
  void refuse(std::string reason);
  void send(std::span<const std::byte> bytes);

  const Side side_;
  const RankHello own_;
  const JobSecret secret_;
  State state_ = State::kRunning;
  int stage_ = 0;  // messages of the other side that have come
  bool is_proven_ = false;
  std::optional<RankHello> peer_;
  std::string reason_;
  std::vector<std::byte> own_bytes_, peer_bytes_;
  std::vector<std::byte> received_;
  std::vector<std::byte> to_send_;
};

inline constexpr std::size_t kLongestHandshake = kRankHelloBytes + kProofBytes + 1;

// What must be equal, or fit, for two processes to work together.

/// Versions of what processes of a job say to each other that this build speaks.
inline constexpr std::uint32_t kOldestProtocol = 3, kNewestProtocol = 3;

/// Of this process.
v1::Build make_build(const std::string& job_id, const JobSecret& secret);

/// Why the two cannot work together, naming what both have ("chief 0", "rank 2") and the remedy;
/// "": they can. Either end comes to the same answer.
std::string incompatibility(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                            std::string_view whose);
/// The same, and whether the other one knows this job's secret.
std::string refusal_of(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                       std::string_view whose);

// What a rank publishes in the store of its group.

/// RankAnnouncement of job.proto, its addresses parsed.
struct Announcement {
  std::uint64_t run = 0;
  std::string machine = {};
  Endpoint endpoint = {};  // no host: there is none
  Endpoint local = {};     // the same
  int group_size = 0;
  v1::Build build = {};

  /// Where others reach it, for messages.
  std::string address() const;
};
std::string to_text(const Announcement& announcement);
/// Nothing: no such text, or no address in it.
std::optional<Announcement> parse_announcement(const std::string& text);

/// Why these two ranks of a group cannot work together; "": they can.
std::string misfit_of(const Announcement& mine, int rank, const Announcement& theirs, int other);

}  // namespace tutti::internal
