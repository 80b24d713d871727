// Who comes to a rank's door and says what the test wants.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "tutti/cluster/net/hello.h"
#include "tutti/cluster/net/socket.h"

namespace tutti::door_visitor {

/// Connected; waits for that.
inline internal::FileDescriptor knock(const internal::Endpoint& endpoint) {
  internal::FileDescriptor socket = internal::start_connecting(endpoint);
  pollfd ready{socket.get(), POLLOUT, 0};
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(60));
  (void)internal::poll_until(std::span(&ready, 1), end);
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
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(60));
  while (!is_closed(socket, heard)) {
    if (Clock::system().now() >= end) return false;
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1), end);
  }
  return true;
}

/// The client's side, to its end or a minute.
inline Handshake shake_hands(const internal::FileDescriptor& socket, const PeerHello& hello,
                             const JobSecret& secret) {
  Handshake handshake(Handshake::Side::kClient, hello, secret);
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(60));
  std::array<std::byte, 1024> bytes{};
  for (;;) {
    say(socket, handshake.bytes_to_send());
    if (handshake.state() != Handshake::State::kRunning) return handshake;
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1), end);
    std::size_t count = 0;
    const internal::ByteFlow flow = internal::read_now(socket, bytes, count);
    (void)handshake.take(std::span<const std::byte>(bytes).first(count));
    if (flow == internal::ByteFlow::kClosed || Clock::system().now() >= end) return handshake;
  }
}

/// The hello of a rank.
inline PeerHello hello_of(int rank, std::uint64_t nonce, const std::string& job_id = "") {
  PeerHello hello = make_hello(ConnectionPurpose::kData, "rank", rank);
  hello.incarnation = nonce;
  hello.job_id = job_id;
  return hello;
}

/// What the rank answers to `hello` after a handshake in the name of `hello.from`. Throws kDataLoss
/// when there is no answer.
inline internal::Welcome answer_to(const internal::Endpoint& endpoint, const internal::Hello& hello,
                                   const JobSecret& secret = {}) {
  const auto socket = knock(endpoint);
  const Handshake handshake = shake_hands(socket, hello_of(hello.from, hello.from_nonce), secret);
  if (handshake.state() != Handshake::State::kDone) {
    fail(ErrorCode::kDataLoss, "no handshake: ", handshake.reason());
  }
  say(socket, internal::sealed(internal::encode(internal::Resume{hello, 0, true}),
                               handshake.session_key(Handshake::Side::kClient)));
  std::array<std::byte, internal::kSealedWelcomeBytes> answer{};
  for (std::size_t filled = 0, count = 0; filled < answer.size(); filled += count) {
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1),
                               deadline_after(Clock::system().now(), std::chrono::seconds(60)));
    const auto place = std::span(answer).subspan(filled);
    if (internal::read_now(socket, place, count) == internal::ByteFlow::kClosed) break;
  }
  return internal::decode_welcome(
      internal::unsealed(answer, handshake.session_key(Handshake::Side::kServer)));
}

}  // namespace tutti::door_visitor
