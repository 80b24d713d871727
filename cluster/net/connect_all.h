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

/// Returns the name of the transport, with which errors begin.
inline std::string_view name_of(ConnectOptions::Way way) {
  using Way = ConnectOptions::Way;
  return way == Way::kTcp ? "tcp" : way == Way::kSharedMemory ? "shm" : "routed";
}

/// Connects to every lower rank, beginning with the next lower one, and accepts every higher one.
/// In each handshake both sides prove that they belong to one job (handshake.h). Keeps the other
/// connections if one breaks. `memory` is this rank's segment, a descriptor of which peers of the
/// same machine and user receive over local connections; if it is not open, all connections are
/// TCP. Unauthenticated peers are limited: 68 bytes and (TCP) 5 s each, 256 at once, of which the
/// oldest is dropped first, a rate per address, and an occasional line in the log. Returns the
/// peers by rank; its own entry is not open. Throws as connect_ranks().
std::vector<ConnectedPeer> connect_all(int rank, int size, KeyValueStore& store,
                                       const ConnectOptions& options, const FileDescriptor& memory);

}  // namespace tutti::internal
