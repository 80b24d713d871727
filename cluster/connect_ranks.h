// The transport of a group of processes: shared memory where ranks share a host, TCP elsewhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tutti/cluster/net/job_secret.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

class Interruption;  // cluster/interruption.h

/// How ranks find and reach each other. `way`, `key_prefix`, `secret` and `job_id` are the same on
/// all ranks; addresses and times are each rank's own.
struct ConnectOptions {
  /// kAuto: shared memory with ranks of the same machine, user and network namespace, if there is
  /// memory for it; TCP with the others. The other two force one of them.
  enum class Way { kAuto, kSharedMemory, kTcp } way = Way::kAuto;
  /// For TCP: of this machine, as the other ranks reach it.
  std::string address = "127.0.0.1";
  /// For TCP through mapped ports: where this rank listens ("0.0.0.0:5000"; empty: at a free port
  /// of `address`), and where the others reach it ("203.0.113.7:31000"; empty: there, by
  /// `address`).
  std::string listen_at = "";
  std::string reached_at = "";
  /// For finding and connecting all ranks.
  Duration timeout = std::chrono::seconds(30);
  /// In front of the group's keys in the store. Groups that exist at once need different ones.
  std::string key_prefix = "ranks";
  /// Messages that came before their recv() are kept, this much in all; beyond it the connection
  /// that brings more fails with kResourceExhausted.
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// Of each ring of shared memory: a power of two from 4 KiB to 1 GiB. 0: 256 KiB, less with many
  /// ranks.
  std::size_t ring_bytes = 0;
  /// The most that a rank can allocate in HostMemory: addresses, not memory; less where files may
  /// not be so large.
  std::size_t place_bytes = std::size_t{1} << 34;
  /// The job's: every connection begins with proofs of both sides that they know it. Not set: that
  /// of TUTTI_JOB_SECRET_FILE, if there is one. Addresses that other machines reach need one.
  JobSecret secret = {};
  /// Ranks of other jobs are refused. "": TUTTI_JOB_ID.
  std::string job_id = {};
  /// Listens at such an address without a secret: for closed laboratory networks.
  bool allow_insecure_network = false;
  /// Another thread ends connecting by it: connect_ranks() throws its reason at once. (Waiting for
  /// a value of the store is the store's own.) May be null.
  std::shared_ptr<const Interruption> interruption = nullptr;
};
/// "auto", "shm" or "tcp"; throws kInvalidArgument listing them.
ConnectOptions::Way parse_way(std::string_view text);

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
/// are refused in one line of the log. Through shared memory the ranks hand each other descriptors;
/// nothing has a name, so nothing is left behind when a process is killed.
///
/// Throws kDeadlineExceeded naming the ranks that did not come; kInvalidArgument for ranks out of
/// range, for a peer with another size, version or numerics, and, with the one-line remedy, for an
/// address that other machines reach, without a secret; kUnavailable for an address that cannot be
/// used, and for a rank on another machine where shared memory is forced; kNotFound for a rank
/// whose address this machine cannot reach, however long it waits; kResourceExhausted when there is
/// not enough memory, without which kAuto does, and says so in the log.
///
/// There is no thread: a rank that waits for a Work (or tests it) moves the bytes of all. A send()
/// writes at once what the socket or the ring takes, and has ended when the system has all its
/// bytes. Over TCP every message has a CRC32C. A connection that breaks, falls silent
/// (net/byte_stream.h) or brings a message that is not what was sent stays broken: whatever waits
/// for that peer, now or later, throws kUnavailable naming rank and address or pid, after the last
/// message that arrived whole; of a killed process of this host a waiting rank learns at once. The
/// destructor lingers until the system of each peer has all that was sent, or the peer is gone: for
/// 2 s at most, 0.2 s after abort(), which may take as long itself when a peer reads slowly. Where
/// all ranks share memory there is host_memory(), and collectives of all go through it.
ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options = {});

}  // namespace tutti
