// How the ranks of a group find and recognize each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "cluster/net/connection.h"
#include "core/file.h"
#include "tutti/cluster/net/connect_options.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {

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
/// a rate per address, and a line in the log now and then. Returns the peers by rank; its own is
/// not open. Throws as connect_ranks().
std::vector<ConnectedPeer> connect_all(int rank, int size, KeyValueStore& store,
                                       const ConnectOptions& options, const FileDescriptor& memory);

}  // namespace tutti::internal
