// Connects one rank or all ranks, only by TCP or only through shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

inline std::shared_ptr<Transport> connect_by_tcp(int rank, int size, KeyValueStore& store,
                                                 ConnectOptions options = {}) {
  options.way = ConnectOptions::Way::kTcp;
  return connect_ranks(rank, size, store, options).transport;
}

inline std::shared_ptr<Transport> connect_by_memory(int rank, int size, KeyValueStore& store,
                                                    ConnectOptions options = {}) {
  options.way = ConnectOptions::Way::kSharedMemory;
  return connect_ranks(rank, size, store, options).transport;
}

/// Returns the ranks of a group whose members are all in this process. Throws kInternal if one
/// cannot connect.
inline std::vector<std::shared_ptr<Transport>> connected_ranks(
    int size, KeyValueStore& store,
    const ConnectOptions& options = {.way = ConnectOptions::Way::kTcp}) {
  std::vector<std::shared_ptr<Transport>> ranks(static_cast<std::size_t>(size));
  require_on_ranks(size, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)] = connect_ranks(rank, size, store, options).transport;
  });
  return ranks;
}
/// Overload with a new in-process store.
inline std::vector<std::shared_ptr<Transport>> connected_ranks(
    int size, const ConnectOptions& options = {.way = ConnectOptions::Way::kTcp}) {
  InProcessStore store;
  return connected_ranks(size, store, options);
}

}  // namespace tutti
