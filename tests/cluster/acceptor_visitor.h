// Connects to a rank that accepts, and says what the test wants.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "tests/support/waiting.h"

namespace tutti::acceptor_visitor {

/// Connected; waits for that.
inline internal::FileDescriptor connect_to(const internal::Endpoint& endpoint) {
  internal::FileDescriptor socket = internal::start_connecting(endpoint);
  pollfd ready{socket.get(), POLLOUT, 0};
  (void)internal::poll_until(std::span(&ready, 1), testing::late());
  return socket;
}

inline void say(const internal::FileDescriptor& socket, std::span<const std::byte> bytes) {
  std::size_t count = 0;
  (void)internal::write_now(socket, bytes, count);
}
inline void say(const internal::FileDescriptor& socket, std::string_view words) {
  say(socket, std::as_bytes(std::span(words)));
}

/// Whether the other side has closed; what it said before goes to `heard`.
inline bool is_closed(const internal::FileDescriptor& socket,
                      std::vector<std::byte>* heard = nullptr) {
  std::array<std::byte, 4096> bytes{};
  std::size_t count = 1;
  while (count > 0) {
    if (internal::read_now(socket, bytes, count) == internal::ByteFlow::kClosed) return true;
    if (heard) heard->insert(heard->end(), bytes.begin(), bytes.begin() + static_cast<long>(count));
  }
  return false;
}

/// Waits for it, at most a minute.
inline bool gets_closed(const internal::FileDescriptor& socket,
                        std::vector<std::byte>* heard = nullptr) {
  const TimePoint end = testing::late();
  while (!is_closed(socket, heard)) {
    if (Clock::system().now() >= end) return false;
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1), end);
  }
  return true;
}

/// Waits for what the other side says next, at most a minute, and gives it to the handshake. False:
/// the connection has ended.
inline bool hear(const internal::FileDescriptor& socket, internal::Handshake& handshake) {
  std::array<std::byte, internal::kLongestHandshake> bytes{};
  pollfd ready{socket.get(), POLLIN, 0};
  const TimePoint end = testing::late();
  if (internal::poll_until(std::span(&ready, 1), end) <= 0) return false;
  std::size_t count = 0;
  const internal::ByteFlow flow =
      internal::read_now(socket, std::span(bytes).first(handshake.num_awaited()), count);
  (void)handshake.take(std::span<const std::byte>(bytes).first(count));
  return flow == internal::ByteFlow::kOpen;
}

/// The client's side, to its end.
inline internal::Handshake shake_hands(const internal::FileDescriptor& socket,
                                       const internal::RankHello& hello, const JobSecret& secret) {
  internal::Handshake handshake(internal::Handshake::Side::kClient, hello, secret);
  for (;;) {
    say(socket, handshake.bytes_to_send());
    if (handshake.state() != internal::Handshake::State::kRunning || !hear(socket, handshake)) {
      return handshake;
    }
  }
}

inline std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

}  // namespace tutti::acceptor_visitor
