// Connects and authenticates the ranks of a group.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "cluster/net/connection.h"
#include "core/file.h"
#include "tutti/cluster/net/connect_options.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {

/// Returns the name of the transport, which is the first word of errors.
inline std::string_view name_of(ConnectOptions::Way way) {
  using Way = ConnectOptions::Way;
  return way == Way::kTcp ? "tcp" : way == Way::kSharedMemory ? "shm" : "routed";
}

/// Connects to every lower rank, beginning with the next lower one, and accepts every higher one.
/// In each handshake both sides prove that they belong to the same job (handshake.h). Keeps the
/// other connections if one breaks. `memory` is this rank's segment; peers that run on the same
/// machine as the same user receive its descriptor over local connections. If the segment is not
/// open, all connections are TCP. Limits for unauthenticated peers: 68 bytes and (for TCP) 5 s per
/// peer, 256 peers at once (the oldest is dropped first), a rate per address, and a limited number
/// of log lines. Returns the peers by rank; this rank's own entry is not open. Throws the same
/// errors as connect_ranks().
std::vector<ConnectedPeer> connect_all(int rank, int size, KeyValueStore& store,
                                       const ConnectOptions& options, const FileDescriptor& memory);

}  // namespace tutti::internal
