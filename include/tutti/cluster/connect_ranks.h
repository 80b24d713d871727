// Ranks that are processes: those that a launcher started, and a way between any: shared memory
// where ranks share a host, TCP elsewhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tutti/cluster/net/connect_options.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// A communicator of all processes that `tutti run`, `mpirun`, `srun` or a cluster's operator
/// started as workers (and chief), found as resolver_from_environment() finds them, in their order;
/// of this process alone where nothing started others. All call it, once or again. Waits 5 minutes
/// for the others. A process that dies, stops or hangs ends the calls of all with an error that
/// names it. Destroy it before main() ends: then this process leaves the job. Throws
/// kInvalidArgument for a cluster that makes no sense and for a task that does not train,
/// kDeadlineExceeded naming the workers that did not come.
std::shared_ptr<Communicator> communicator_from_environment(
    const CommunicatorOptions& options = {});

/// "auto", "shm" or "tcp"; throws kInvalidArgument listing them.
ConnectOptions::Way parse_way(std::string_view text);

/// What connect_ranks() gives: the way to all other ranks, and a line for the log.
struct ConnectedRanks {
  std::shared_ptr<Transport> transport;
  /// "rank 0 of 3: rank 1: shared memory (pid 4711), rank 2: tcp 10.0.0.3:4712".
  std::string line;
};

/// Connects this rank with all others, who call it too with the same way, in other processes or in
/// other threads. Every rank may use another kind of connection to each peer. Every rank listens,
/// and publishes where in `store` (used during this call only) with a number of its own that is new
/// each time, so what an earlier run left in the store is recognized. Every connection begins with
/// a handshake that proves the job's secret both ways; strangers, other jobs, versions and numerics
/// are refused in one line of the log. Ranks that share memory
/// hand each other its descriptors over local sockets, which carry their messages, too; nothing has
/// a name, so nothing is left behind when a process is killed.
///
/// Throws kDeadlineExceeded naming the ranks that did not come; kInvalidArgument for ranks out of
/// range, for a peer with another size, version or numerics, and, with the one-line remedy, for an
/// address that other machines reach, without a secret; kUnavailable for an address that cannot be
/// used, and for a rank on another machine where shared memory is forced; kNotFound for a rank
/// whose address this machine cannot reach, however long it waits; kResourceExhausted when there is
/// not enough memory, without which kAuto does, and says so in the log.
///
/// There is no thread: a rank that waits for a Work (or tests it) moves the bytes of all. A send()
/// writes at once what the system takes, and has ended when the system has all its
/// bytes. Over TCP every message has a CRC32C. A connection that breaks, falls silent
/// (net/connection.h) or brings a message that is not what was sent stays broken: whatever waits
/// for that peer, now or later, throws kUnavailable naming rank and address or pid, after the last
/// message that arrived whole; of a killed process of this host a waiting rank learns at once. The
/// destructor lingers until the system of each peer has all that was sent, or the peer is gone: for
/// 2 s at most, 0.2 s after abort(), which may take as long itself when a peer reads slowly. Where
/// all ranks share memory there is host_memory(), and collectives of all go through it.
ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options = {});

}  // namespace tutti
