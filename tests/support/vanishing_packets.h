// Packets that vanish on their way to a socket: neither end hears of it, as with a broken cable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "tutti/core/error.h"

namespace tutti::testing {

/// The system drops what arrives for this connected TCP socket, before TCP sees it. `longest`:
/// segments of up to so many bytes, with their headers, pass.
inline void let_packets_vanish(int socket, std::uint32_t longest = 0) {
  std::array<sock_filter, 4> program{{{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
                                      {BPF_JMP | BPF_JGT | BPF_K, 0, 1, longest},
                                      {BPF_RET | BPF_K, 0, 0, 0},
                                      {BPF_RET | BPF_K, 0, 0, ~std::uint32_t{0}}}};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0) {
    fail(ErrorCode::kUnavailable, "this system does not let packets vanish");
  }
}

/// From now on they arrive again.
inline void let_packets_arrive(int socket) {
  const int nothing = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof(nothing));
}

/// This process's end of its one IPv4 connection to `port`, at which it listened: that which was
/// accepted there, or the other one.
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

}  // namespace tutti::testing
