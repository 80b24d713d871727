// Messages between processes of one host through shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

struct ShmOptions {
  /// For finding and connecting all ranks.
  Duration timeout = std::chrono::seconds(30);
  /// In front of the group's keys in the store. Groups that exist at once need different ones.
  std::string key_prefix = "shm";
  /// Messages that came before their recv() are kept, this much in all.
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// Of each ring: a power of two from 4 KiB to 1 GiB. 0: 256 KiB, less with many ranks.
  std::size_t ring_bytes = 0;
  /// The most that a rank can allocate in HostMemory: addresses, not memory.
  std::size_t place_bytes = std::size_t{1} << 34;
  /// A folder of memory (/dev/shm) for the segment's file, which has no name there either; empty:
  /// memory of the system that belongs to no folder.
  std::string folder = "";
};

/// Connects this rank with all others, who call it too, in other processes of this host and user or
/// in other threads. Ranks find each other through `store` (used during this call only), as those
/// of tcp_transport() do, and hand each other descriptors of their memory; nothing has a name, so
/// nothing is left behind when a process is killed. Throws as tcp_transport(); kResourceExhausted
/// when there is not enough memory; kUnavailable for a rank on another machine.
///
/// There is no thread: a rank that waits for a Work (or tests it) moves the bytes of all. A send()
/// has ended when its bytes are in the ring. A peer that is gone is kUnavailable, naming rank and
/// pid, after its last message was received; a waiting rank learns of a killed process at once.
/// host_memory() is there: collectives of all ranks go through it (make_communicator()).
std::shared_ptr<Transport> shm_transport(int rank, int size, KeyValueStore& store,
                                         const ShmOptions& options = {});

}  // namespace tutti
