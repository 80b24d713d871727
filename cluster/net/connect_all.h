// How the ranks of a group find and recognize each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "tutti/cluster/net/connect_options.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {

/// A socket that is connected to a rank of the group.
struct ConnectedPeer {
  FileDescriptor socket;
  std::string address;  // of the peer, for messages
  bool is_local = false;
  FileDescriptor memory = {};  // of a local peer: its segment
};

/// The connections of one rank, by peer; its own is not open.
struct Connections {
  std::vector<ConnectedPeer> by_rank;
  int ranks_on_this_machine = 1;
};

/// Transport::name(), and the first word of errors.
inline std::string_view name_of(ConnectOptions::Way way) {
  using Way = ConnectOptions::Way;
  return way == Way::kTcp ? "tcp" : way == Way::kSharedMemory ? "shm" : "routed";
}

/// Connects to every lower rank, the next lower one first, and accepts every higher one, each with
/// proofs of both sides that they belong to one job (handshake.h). Keeps connections that stand
/// when another one breaks. `memory`: this rank's segment, of which peers of the same machine and
/// user get a copy over local connections; not open: all connections are TCP. What strangers cost
/// meanwhile is limited: 68 bytes and, by TCP, 5 s each, 256 at once of whom the oldest goes first,
/// a rate per address, and a line in the log now and then. Throws as connect_ranks().
Connections connect_all(int rank, int size, KeyValueStore& store, const ConnectOptions& options,
                        const FileDescriptor& memory);

}  // namespace tutti::internal
