// Helpers for tests of transports: connect one rank or all ranks, over TCP only or through shared
// memory only, and create the bytes of test messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

/// Returns bytes that are determined by a seed.
inline std::vector<std::byte> pattern_of(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

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

/// Connects all ranks of a group within this process and returns their transports. Throws kInternal
/// if a rank cannot connect.
inline std::vector<std::shared_ptr<Transport>> connected_ranks(
    int size, KeyValueStore& store,
    const ConnectOptions& options = {.way = ConnectOptions::Way::kTcp}) {
  std::vector<std::shared_ptr<Transport>> ranks(static_cast<std::size_t>(size));
  require_on_ranks(size, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)] = connect_ranks(rank, size, store, options).transport;
  });
  return ranks;
}
/// Overload that uses a new in-process store.
inline std::vector<std::shared_ptr<Transport>> connected_ranks(
    int size, const ConnectOptions& options = {.way = ConnectOptions::Way::kTcp}) {
  InProcessStore store;
  return connected_ranks(size, store, options);
}

}  // namespace tutti
