// Handshakes between ranks, and seals.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/opening.h"

#include <sys/random.h>
#include <sys/socket.h>

#include "tutti/core/error.h"

namespace tutti::internal {

std::uint64_t new_run_nonce() {
  std::uint64_t nonce = 0;
  while (nonce == 0) {
    if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) nonce = 0;
  }
  return nonce;
}

Handshake rank_handshake(Handshake::Side side, const RankIdentity& own) {
  PeerHello hello = make_hello(ConnectionPurpose::kData, "rank", own.rank);
  hello.incarnation = own.nonce;
  hello.job_id = own.job_id;
  hello.numerics = own.numerics;
  return {side, hello, own.secret};
}

bool is_rank(const PeerHello& hello, int rank, std::uint64_t nonce) {
  return hello.job == "rank" && hello.index == rank && hello.incarnation == nonce;
}

void check_sealed(std::span<const std::byte> all, const Digest256& key) {
  const std::size_t size = all.size() - sizeof(SealBytes);
  if (FrameSeals(key).is_next(all.first(size), all.subspan(size))) return;
  fail(ErrorCode::kDataLoss, "tcp: what opens a connection was damaged after the handshake");
}

bool send_opening(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  return bytes.empty() || ::send(socket.get(), bytes.data(), bytes.size(),
                                 MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace tutti::internal
