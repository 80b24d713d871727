// Two processes prove to each other that they belong to one job: bytes in, bytes out.
// SPDX-License-Identifier: Apache-2.0
//
// The client sends its hello; the server answers with its own and a proof; the client sends a
// proof; the server ends it with a welcome. A *proof* is HMAC-SHA256 with the job's secret over
// both hellos and a label that differs per direction, so neither a recording nor a reflection is
// one: both hellos hold a number that is new each time.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/cluster/net/hello.h"
#include "tutti/cluster/net/job_secret.h"

namespace tutti {

using Digest256 = std::array<std::byte, 32>;
/// HMAC-SHA256 (RFC 2104) over the parts, one after the other. Throws kInternal.
Digest256 hmac_sha256(std::span<const std::byte> key,
                      std::initializer_list<std::span<const std::byte>> parts);

/// One side of a handshake. Give it what arrives, send what it wants sent. It reads at most
/// kLongestHandshake bytes in all and keeps no more. Threads: one at a time.
class Handshake {
 public:
  enum class Side { kClient, kServer };
  enum class State {
    kRunning,
    kDone,      // peer() is who it says
    kRefused,   // by this side or the other: reason() says why, in words for the user
    kStranger,  // no peer at all: drop the connection without a word
  };

  Handshake(Side side, PeerHello own, JobSecret secret);

  /// How many bytes of the other side come next: what lies behind them is not the handshake's.
  std::size_t num_awaited() const { return bytes_wanted() - received_.size(); }
  /// Takes `bytes` and returns how many of them belonged to the handshake; the rest comes after it.
  std::size_t take(std::span<const std::byte> bytes);
  /// What is to be sent now, also after it was refused.
  std::vector<std::byte> bytes_to_send();

  State state() const { return state_; }
  /// Valid once the state is kDone, and in refusals when the peer's hello has come.
  const std::optional<PeerHello>& peer() const { return peer_; }
  const std::string& reason() const { return reason_; }
  /// Refused for what a peer of the same job has proven to be (another group, other numerics; for
  /// the client another version, too), so that trying again is of no use.
  bool is_final() const;
  /// The server's: who answers the proof. Until it is called the state stays kRunning with
  /// is_proven() true; "" lets the peer in, else it is refused with this reason.
  bool is_proven() const { return is_proven_; }
  void decide(const std::string& refusal);

 private:
  void take_message();
  void take_for_stranger();
  bool take_hello();
  void answer_hello();
  void take_proof_of_client();
  void take_answer();
  void take_welcome();
  std::size_t bytes_wanted() const;
  Digest256 proof(std::string_view label) const;
  void refuse(std::string reason);
  void send(std::span<const std::byte> bytes);
  void send_welcome(bool accepted, std::string_view reason);

  const Side side_;
  const PeerHello own_;
  const JobSecret secret_;
  State state_ = State::kRunning;
  int stage_ = 0;  // messages of the other side that have come
  bool is_proven_ = false;
  bool is_peer_proven_ = false;
  std::optional<PeerHello> peer_;
  std::string reason_;
  PeerHelloBytes own_bytes_{}, peer_bytes_{};
  std::vector<std::byte> received_;
  std::vector<std::byte> to_send_;
};

inline constexpr std::size_t kLongestHandshake = 4096;

}  // namespace tutti
