// How a connection between ranks begins: a handshake, one sealed message, one sealed answer.
// SPDX-License-Identifier: Apache-2.0
//
// The handshake proves that both sides know the job's secret, and binds versions, job, numerics,
// rank and run (the rank's number that is new with each rendezvous). What follows is sealed with
// the key that the handshake gives, so nothing can be put in between. Then come frames or chunks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/handshake/seal.h"
#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// Who a rank is in the handshakes on its connections.
struct RankIdentity {
  int rank = 0;
  std::uint64_t nonce = 0;  // of this run of the rank
  std::string job_id = {};
  JobSecret secret = {};
  std::string numerics = {};  // as they were when the group was formed
};

/// Drawn from the system; not 0.
std::uint64_t new_run_nonce();

Handshake rank_handshake(Handshake::Side side, const RankIdentity& own);
/// Whether this hello is of that rank in that run.
bool is_rank(const PeerHello& hello, int rank, std::uint64_t nonce);

/// `bytes`, and the proof that they are the first after a handshake with this key.
template <std::size_t n>
std::array<std::byte, n + sizeof(SealBytes)> sealed(const std::array<std::byte, n>& bytes,
                                                    const Digest256& key) {
  std::array<std::byte, n + sizeof(SealBytes)> all{};
  const SealBytes seal = FrameSeals(key).next(bytes);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i < n ? bytes[i] : seal[i - n];
  return all;
}
/// Throws kDataLoss when the proof is that of other bytes or another key.
void check_sealed(std::span<const std::byte> all, const Digest256& key);
template <std::size_t n>
std::span<const std::byte, n - sizeof(SealBytes)> unsealed(const std::array<std::byte, n>& all,
                                                           const Digest256& key) {
  check_sealed(all, key);
  return std::span<const std::byte>(all).template first<n - sizeof(SealBytes)>();
}

inline constexpr std::size_t kSealedResumeBytes = kResumeBytes + sizeof(SealBytes);
inline constexpr std::size_t kSealedResumedBytes = kResumedBytes + sizeof(SealBytes);
inline constexpr std::size_t kSealedWelcomeBytes = kWelcomeBytes + sizeof(SealBytes);

/// Hands a few bytes to the empty buffer of a new connection; false: it is broken.
bool send_opening(const FileDescriptor& socket, std::span<const std::byte> bytes);

}  // namespace tutti::internal
