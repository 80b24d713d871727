// Connections between ranks that are processes: shared memory within a host, TCP between hosts.
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

/// Returns a communicator of all workers (and the chief, as rank 0) that `tutti run`, `mpirun`,
/// `srun` or a cluster's operator started, as resolver_from_environment() finds them. Without a
/// cluster, the communicator has one rank. Collective: every process must call it. Waits up to 5
/// minutes. If a process dies, stops or hangs, all ranks' calls fail with an error that names that
/// process. Destroy the communicator before main() returns, so that this process leaves the job.
/// Throws kInvalidArgument if the cluster is invalid or this task does not train, and
/// kDeadlineExceeded naming the workers that did not join.
std::shared_ptr<Communicator> communicator_from_environment(
    const CommunicatorOptions& options = {});

/// Parses "auto", "shm" or "tcp". Throws kInvalidArgument, listing these, for any other string.
ConnectOptions::Way parse_way(std::string_view text);

/// Result of connect_ranks(): the transport to all other ranks, and a log line.
struct ConnectedRanks {
  std::shared_ptr<Transport> transport;
  /// Log line such as "rank 0 of 3: rank 1: shared memory (pid 4711), rank 2: tcp 10.0.0.3:4712".
  std::string line;
};

/// Connects this rank to all others. Collective: all ranks call it with the same `way`, each from
/// its own process or thread. Different pairs of ranks may use different kinds of connections.
///
/// Every rank publishes its address in `store` (used during this call only) with a random number
/// that lets ranks recognize values from an earlier run. In a handshake, both sides prove that they
/// know the job's secret. Unauthenticated peers and ranks of a different job, version or numerics
/// are refused with one line in the log. Ranks that share memory pass its descriptors over local
/// sockets, which also carry their messages; the memory has no name, so a killed process leaves
/// nothing behind.
///
/// Throws kDeadlineExceeded, naming the ranks that did not join; kInvalidArgument for a rank out of
/// range, for a peer with a different size, version or numerics, and, with the remedy, for an
/// address that other machines can reach if there is no secret; kUnavailable for an unusable
/// address, and for a rank on another machine if shared memory is forced; kNotFound if this machine
/// can never reach a rank's address; kResourceExhausted without enough shared memory (kAuto logs it
/// and uses TCP).
///
/// There is no background thread: a rank that waits for a Work, or tests it, moves the bytes of all
/// connections. send() immediately writes what the system accepts; its Work completes when the
/// system has accepted all bytes. Over TCP, every message has a CRC32C.
///
/// A connection that breaks, falls silent (net/connection.h) or delivers a damaged message stays
/// broken: after the last intact message, every operation on that peer throws kUnavailable with its
/// rank and its address or pid. A killed process on this host is noticed immediately. The
/// destructor lingers until every peer's system has all bytes or the peer has exited, at most 2 s.
/// After abort(), it waits at most 0.2 s for a peer that does not read, and so does abort() itself;
/// a peer that reads slowly gets up to 2 s. If all ranks share memory, host_memory() is set, and
/// collectives over all ranks use it.
ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options = {});

}  // namespace tutti
