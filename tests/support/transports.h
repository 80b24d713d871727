// Connects a rank by TCP alone, or through shared memory alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cluster/connect_ranks.h"

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

}  // namespace tutti
