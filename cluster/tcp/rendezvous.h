// How the ranks of a TCP group find and recognize each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/tcp/frame.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/cluster/tcp/tcp_transport.h"

namespace tutti::internal {

/// What a rank publishes: "<nonce> <machine> <host:port>".
struct Announcement {
  std::uint64_t nonce = 0;
  std::string machine;  // equal on ranks that share cores
  Endpoint endpoint;
};
std::string to_text(const Announcement& announcement);
/// Nothing: no such text.
std::optional<Announcement> parse_announcement(std::string_view text);

struct Connection {
  FileDescriptor socket;
  std::string address;  // of the peer, for messages
};

/// The connections of one rank, by peer; its own is not open.
struct Connections {
  std::vector<Connection> by_rank;
  int ranks_on_this_machine = 1;
};

/// Connects to every lower rank, in their order, then accepts every higher one. Throws as
/// tcp_transport().
Connections connect_all(int rank, int size, KeyValueStore& store, const TcpOptions& options);

}  // namespace tutti::internal
