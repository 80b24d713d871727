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
  /// See TcpOptions and ShmOptions.
  std::size_t bytes_kept = std::size_t{1} << 30;
  std::size_t ring_bytes = 0;
  std::size_t place_bytes = std::size_t{1} << 34;  // less where files may not be so large
  std::string folder = "";
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

/// Connects this rank with all others, who call it too with the same way. Every rank may use
/// another kind of connection to each peer; messages, errors and promises are those of
/// tcp_transport() and shm_transport(). Throws as they do; kInvalidArgument with the one-line
/// remedy for an address that other machines reach, without a secret; kNotFound for a rank whose
/// address this machine cannot reach, however long it waits. kAuto does without shared
/// memory, and says so in the log, where there is not enough of it.
ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options = {});

}  // namespace tutti
