// Handshake in which two ranks prove that they belong to one job. The code does no I/O.
// SPDX-License-Identifier: Apache-2.0
//
// The client sends its hello, and the server replies with its own hello and a proof. The client
// sends a proof, and the server replies with a verdict. A *hello* contains a magic number, the
// rank, the run and a new nonce. A *proof* is HMAC-SHA256 with the job's secret over both hellos
// and a label per direction, so neither replay nor reflection succeeds. All other properties of a
// rank are in the store (Announcement), keyed by rank and matched by run.
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
/// Computes HMAC-SHA256 (RFC 2104) over the concatenated parts. Throws kInternal if OpenSSL fails.
Digest256 hmac_sha256(std::span<const std::byte> key,
                      std::initializer_list<std::span<const std::byte>> parts);

/// A rank and its run, as published in the store.
struct RankHello {
  int rank = 0;
  std::uint64_t run = 0;
  bool operator==(const RankHello&) const = default;
};
inline constexpr std::size_t kRankHelloBytes = 36;  // including magic number and nonce
inline constexpr std::size_t kProofBytes = 32;

/// One side of a handshake. The caller passes received bytes to take() and sends bytes_to_send().
/// Reads and keeps at most kLongestHandshake bytes. Not thread-safe.
class Handshake {
 public:
  enum class Side { kClient, kServer };
  enum class State {
    kRunning,
    kDone,      // both sides are authenticated
    kRefused,   // refused by either side; see reason()
    kStranger,  // not a rank of this version; the caller closes the connection silently
  };

  Handshake(Side side, RankHello own, JobSecret secret);

  /// Returns the number of bytes to read next; later bytes are not part of the handshake.
  std::size_t num_awaited() const { return bytes_wanted() - received_.size(); }
  /// Consumes bytes of the handshake and returns their number; the remaining bytes follow the
  /// handshake.
  std::size_t take(std::span<const std::byte> bytes);
  /// Returns the bytes to send now; there may be some even after a refusal.
  std::vector<std::byte> bytes_to_send();

  State state() const { return state_; }
  /// Returns the peer's hello; nullopt before it arrives.
  const std::optional<RankHello>& peer() const { return peer_; }
  const std::string& reason() const { return reason_; }
  /// Returns true if the other side has proven that it knows the secret. The server's state stays
  /// kRunning until decide().
  bool is_proven() const { return is_proven_; }
  /// Admits or refuses the peer. Called once, by the server.
  void decide(bool accepted);

 private:
  void take_message();
  bool consume_hello();
  void accept_proof(std::string_view label, std::span<const std::byte> given);
  std::size_t bytes_wanted() const;
  Digest256 proof(std::string_view label) const;
  void refuse(std::string reason);
  void send(std::span<const std::byte> bytes);

  const Side side_;
  const RankHello own_;
  const JobSecret secret_;
  State state_ = State::kRunning;
  int stage_ = 0;  // number of received messages
  bool is_proven_ = false;
  std::optional<RankHello> peer_;
  std::string reason_;
  std::vector<std::byte> own_bytes_, peer_bytes_;
  std::vector<std::byte> received_;
  std::vector<std::byte> to_send_;
};

inline constexpr std::size_t kLongestHandshake = kRankHelloBytes + kProofBytes + 1;

// Compatibility of two processes of one job.

/// Range of protocol versions that this build supports.
inline constexpr std::uint32_t kOldestProtocol = 3, kNewestProtocol = 3;

/// Returns the version, numerics, job id and secret's tag of this process.
v1::Build make_build(const std::string& job_id, const JobSecret& secret);

/// Returns why two processes ("chief 0", "rank 2") are incompatible, naming both values and the
/// remedy; "" if they are compatible. Symmetric.
std::string incompatibility(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                            std::string_view whose);
/// Same as incompatibility(), but also compares the secrets of both processes.
std::string refusal_of(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                       std::string_view whose);

// Values that a rank publishes in its group's store.

/// Parsed RankAnnouncement from job.proto.
struct Announcement {
  std::uint64_t run = 0;
  std::string machine = {};
  Endpoint endpoint = {};  // its host is empty if there is none
  Endpoint local = {};     // its host is empty if there is none
  int group_size = 0;
  v1::Build build = {};

  /// Returns the address at which other ranks reach this rank, for use in error messages.
  std::string address() const;
};
std::string to_text(const Announcement& announcement);
/// Parses an announcement. Returns nullopt if the text is not one, or if it has no address.
std::optional<Announcement> parse_announcement(const std::string& text);

/// Returns why two ranks of a group are incompatible; "" if they are compatible.
std::string misfit_of(const Announcement& mine, int rank, const Announcement& theirs, int other);

}  // namespace tutti::internal
