// Ranks in this process whose connections pass through fault-injecting proxies, and clients of
// ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/transports.h"
#include "tests/support/waiting.h"
#include "tutti/core/error.h"

namespace tutti::proxied_ranks {
using testing::in;
using testing::late;

/// Makes the kernel drop segments for this connected TCP socket on arrival, before TCP sees them.
/// Segments of up to `longest` bytes, including headers, still pass.
inline void let_packets_vanish(int socket, std::uint32_t longest = 0) {
  std::array<sock_filter, 4> program{{{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
                                      {BPF_JMP | BPF_JGT | BPF_K, 0, 1, longest},
                                      {BPF_RET | BPF_K, 0, 0, 0},
                                      {BPF_RET | BPF_K, 0, 0, ~std::uint32_t{0}}}};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0) {
    fail(ErrorCode::kUnavailable, "let_packets_vanish: the kernel refused the socket filter");
  }
}

/// Undoes let_packets_vanish().
inline void let_packets_arrive(int socket) {
  const int nothing = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof(nothing));
}

/// Returns one end of the only IPv4 connection to `port`, on which this process listens: the
/// accepted end or the connecting end.
inline int end_of_connection(int port, bool is_accepted) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::atoi(entry.path().filename().c_str());
    sockaddr_in own{}, peer{};
    socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
    const bool is_connected =
        ::getsockname(number, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
        ::getpeername(number, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0;
    if (!is_connected || own.sin_family != AF_INET) continue;
    if (ntohs((is_accepted ? own : peer).sin_port) == port) return number;
  }
  fail(ErrorCode::kNotFound, "this process has no connection to port ", port);
}

/// Store that announces a proxy's address for every rank; higher ranks connect through this proxy.
class ProxiedStore final : public KeyValueStore {
 public:
  explicit ProxiedStore(const testing::ChaosPlan& plan) : plan_(plan) {}
  void set(std::string_view key, std::string_view value) override {
    internal::Announcement announced = internal::parse_announcement(std::string(value)).value();
    const int rank = std::atoi(std::string(key.substr(key.find('/') + 1)).c_str());
    testing::ChaosPlan plan = plan_;
    plan.seed = plan.seed * 31 + static_cast<std::uint64_t>(rank);
    auto proxy = std::make_unique<testing::ChaosProxy>(announced.endpoint, plan);
    announced.endpoint = proxy->endpoint();
    {
      MutexLock lock(mutex_);
      proxies_[rank] = std::move(proxy);
    }
    store_.set(key, internal::to_text(announced));
  }
  std::optional<std::string> get(std::string_view key) override { return store_.get(key); }
  std::string wait(std::string_view key, TimePoint deadline) override {
    return store_.wait(key, deadline);
  }
  testing::ChaosProxy& proxy(int rank) {
    MutexLock lock(mutex_);
    return *proxies_.at(rank);
  }
  /// Ends the connections through a rank's proxy, as if the rank's process had died.
  void end_proxy(int rank) {
    MutexLock lock(mutex_);
    proxies_.erase(rank);
  }

 private:
  const testing::ChaosPlan plan_;
  InProcessStore store_;
  Mutex mutex_;
  std::map<int, std::unique_ptr<testing::ChaosProxy>> proxies_ TUTTI_GUARDED_BY(mutex_);
};

/// Group in which all bytes between ranks 0 and 1 pass through rank 0's proxy.
struct ProxiedRanks {
  explicit ProxiedRanks(const testing::ChaosPlan& plan = {}, int size = 2,
                        ConnectOptions options = {})
      : store(plan) {
    options.way = ConnectOptions::Way::kTcp;
    ranks = connected_ranks(size, store, options);
  }
  std::shared_ptr<Transport>& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }
  testing::ChaosProxy& proxy() { return store.proxy(0); }

  ProxiedStore store;
  std::vector<std::shared_ptr<Transport>> ranks;
};

/// Exchanges `count` bytes between two ranks. Throws the transport's errors, and kInternal if the
/// received bytes differ from those sent.
inline void exchange(Transport& mine, std::size_t count, std::uint64_t round = 0) {
  const int rank = mine.rank();
  const auto body = pattern_of(count, 2 * round + static_cast<std::uint64_t>(rank));
  std::vector<std::byte> got(count);
  const auto recv = mine.recv(1 - rank, 1, {}, got);
  const auto send = mine.send(1 - rank, 1, {}, body);
  recv->wait(late());
  send->wait(late());
  if (got != pattern_of(count, 2 * round + static_cast<std::uint64_t>(1 - rank))) {
    fail(ErrorCode::kInternal, "message ", round, ": the received bytes differ from those sent");
  }
}

/// Two ranks connected without a proxy, and the sockets at both ends of their connection.
struct DirectRanks {
  DirectRanks() {
    require_on_ranks(2, [&](int r) { exchange(*rank(r), 1); });
    const auto announced = internal::parse_announcement(store.get("ranks/0").value()).value();
    for (const int r : {0, 1}) {
      end_of_rank[static_cast<std::size_t>(r)] = end_of_connection(announced.endpoint.port, r == 0);
    }
  }
  std::shared_ptr<Transport>& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }

  InProcessStore store;
  std::vector<std::shared_ptr<Transport>> ranks = connected_ranks(2, store);
  std::array<int, 2> end_of_rank{};
};

/// Error that ended a rank's calls, and the time at which they ended.
struct CallsEnd {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  TimePoint at{};
};

/// Calls `calls` with 0, 1, 2, ... until it throws an Error; returns the error and when it was
/// thrown.
template <class Calls>
CallsEnd end_of(const Calls& calls) {
  for (std::uint64_t round = 0;; ++round) {
    try {
      calls(round);
    } catch (const Error& error) {
      return {error.code(), error.message(), Clock::system().now()};
    }
  }
}

/// Expects `end` and errors of later calls to be kUnavailable with a message that names `peer`.
inline void expect_loss_of(int peer, const CallsEnd& end, Transport& mine) {
  const std::string name = concat("tcp: rank ", peer, " (127.0.0.1:");
  EXPECT_EQ(end.code, ErrorCode::kUnavailable) << end.message;
  EXPECT_NE(end.message.find(name), std::string::npos) << end.message;
  EXPECT_EQ(mine.lost_peer(), peer) << end.message;
  std::array<std::byte, 1> byte{};
  const CallsEnd later = end_of([&](std::uint64_t round) {
    const auto work =
        round % 2 == 0 ? mine.recv(peer, 77, {}, byte) : mine.send(peer, 77, {}, byte);
    work->wait(late());
  });
  EXPECT_EQ(later.code, ErrorCode::kUnavailable) << later.message;
  EXPECT_NE(later.message.find(name), std::string::npos) << later.message;
}

/// Connects to an endpoint and waits until the connection is established.
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

/// Returns true if the peer has closed the connection. Appends bytes received before that to
/// `received`.
inline bool is_closed(const internal::FileDescriptor& socket,
                      std::vector<std::byte>* received = nullptr) {
  std::array<std::byte, 4096> bytes{};
  std::size_t count = 1;
  while (count > 0) {
    if (internal::read_now(socket, bytes, count) == internal::ByteFlow::kClosed) return true;
    if (received)
      received->insert(received->end(), bytes.begin(), bytes.begin() + static_cast<long>(count));
  }
  return false;
}

/// Waits up to a minute for the peer to close the connection; returns true if it does.
inline bool gets_closed(const internal::FileDescriptor& socket,
                        std::vector<std::byte>* received = nullptr) {
  const TimePoint end = testing::late();
  while (!is_closed(socket, received)) {
    if (Clock::system().now() >= end) return false;
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1), end);
  }
  return true;
}

/// Waits up to a minute for bytes and passes them to the handshake. Returns false if none arrive or
/// the peer has closed the connection.
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

/// Runs the client's side of a handshake until it ends or the peer closes the connection.
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

}  // namespace tutti::proxied_ranks
