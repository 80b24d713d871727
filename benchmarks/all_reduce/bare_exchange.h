// Lower bound on the time of an all_reduce between two processes over TCP: only system calls and
// the sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include "cluster/net/socket.h"
#include "tutti/core/clock.h"

namespace tutti::benchmarks {

/// Two ends of a loopback connection, created before the fork. Each end sends all of its values,
/// and adds the values that it receives. There are no headers, checksums, retransmissions or
/// deadlines. Both ends spin while they wait.
class BareExchange {
 public:
  BareExchange() {
    const internal::Listener door = internal::listen_at({"127.0.0.1", 0});
    ends_[1] = internal::start_connecting(door.endpoint);
    pollfd descriptor{door.socket.get(), POLLIN, 0};
    internal::poll_until(std::span(&descriptor, 1),
                         deadline_after(Clock::system().now(), std::chrono::seconds(5)));
    ends_[0] = internal::accept_from(door.socket);
    for (const internal::FileDescriptor& end : ends_) {
      if (!end.is_open()) throw std::runtime_error("tcp-bare: cannot connect over 127.0.0.1");
    }
  }
  BareExchange(const BareExchange&) = delete;
  BareExchange& operator=(const BareExchange&) = delete;

  void barrier(int rank) {
    char byte = 0, other = 0;
    exchange(rank, &byte, &other, 1, 1, [](std::size_t) {});
  }

  double largest(int rank, double value) {
    double other = 0;
    exchange(rank, reinterpret_cast<char*>(&value), reinterpret_cast<char*>(&other), sizeof(value),
             sizeof(value), [](std::size_t) {});
    return std::max(value, other);
  }

  /// Exchanges values with the other end, and adds the received values to `values` in place.
  void sum(int rank, float* values, std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    received_.resize(std::max(received_.size(), count));
    std::size_t summed = 0;
    exchange(rank, reinterpret_cast<char*>(values), reinterpret_cast<char*>(received_.data()),
             bytes, piece_of(bytes), [&](std::size_t got) {
               // These values have already been sent, so they may be overwritten.
               const std::size_t end = got / sizeof(float);
               for (std::size_t i = summed; i < end; ++i) values[i] += received_[i];
               summed = std::max(summed, end);
             });
  }

 private:
  // A packet on the loopback device holds 65,483 bytes. A message that is longer, but at most twice
  // as long, is split into two halves.
  static std::size_t piece_of(std::size_t bytes) {
    constexpr std::size_t kPacket = 65'483;
    return bytes > kPacket && bytes <= 2 * kPacket ? bytes / 2 : kPacket;
  }

  template <class Take>
  void exchange(int rank, const char* own, char* other, std::size_t bytes, std::size_t piece,
                const Take& take) {
    const int end = ends_[static_cast<std::size_t>(rank)].get();
    for (std::size_t sent = 0, got = 0; sent < bytes || got < bytes;) {
      const ssize_t out = sent == bytes ? 0
                                        : ::send(end, own + sent, std::min(piece, bytes - sent),
                                                 MSG_DONTWAIT | MSG_NOSIGNAL);
      check(out);
      sent += static_cast<std::size_t>(std::max<ssize_t>(out, 0));
      // Sends as much as possible before receiving, because the peer's bytes arrive at the same
      // time.
      if (sent < bytes && out > 0) continue;
      const ssize_t in = got == bytes ? -1 : ::recv(end, other + got, bytes - got, MSG_DONTWAIT);
      if (got < bytes) check(in == 0 ? -2 : in);
      got += static_cast<std::size_t>(std::max<ssize_t>(in, 0));
      take(std::min(got, sent));
    }
  }

  static void check(ssize_t result) {
    const bool is_lost = result == -2 || (result == -1 && errno != EAGAIN && errno != EINTR);
    if (is_lost) throw std::runtime_error("tcp-bare: the other process exited");
  }

  std::array<internal::FileDescriptor, 2> ends_;
  std::vector<float> received_;
};

}  // namespace tutti::benchmarks
