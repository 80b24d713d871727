// Options for connect_ranks().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/job_secret.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

class Interruption;  // defined in cluster/net/socket.h

/// Options for connect_ranks(). `way`, `key_prefix`, `secret` and `job_id` must be the same on all
/// ranks; addresses and timeouts may differ.
struct ConnectOptions {
  /// kAuto: shared memory for ranks of one user in the same network namespace of a machine, if
  /// there is enough memory; TCP for all other ranks. kSharedMemory and kTcp force one transport.
  enum class Way { kAuto, kSharedMemory, kTcp } way = Way::kAuto;
  /// TCP: address at which the other ranks reach this machine.
  std::string address = "127.0.0.1";
  /// TCP through mapped ports: the address on which this rank listens ("0.0.0.0:5000"; empty: a
  /// free port of `address`), and the one at which other ranks reach it ("203.0.113.7:31000";
  /// empty: `address` with the port of `listen_at`).
  std::string listen_at = "";
  std::string reached_at = "";
  /// Timeout for finding and connecting all ranks. It restarts with each connection that this rank
  /// makes, and with each peer that reports that its own connections are complete.
  Duration timeout = durations::kJoinTimeout;
  /// Prefix of the group's keys in the store; must differ between groups that exist at the same
  /// time.
  std::string key_prefix = "ranks";
  /// Limit, in bytes, on this rank's messages that arrived before their recv(). A connection that
  /// exceeds the limit fails with kResourceExhausted.
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// Address space reserved for this rank's HostMemory, in bytes; an upper limit on its
  /// allocations. Less is reserved if the system limits file sizes.
  std::size_t place_bytes = std::size_t{1} << 34;
  /// Secret of the job. Every connection begins with proofs that both sides know the secret.
  /// Default: the secret in TUTTI_JOB_SECRET_FILE, if set. Required for addresses that other
  /// machines can reach.
  JobSecret secret = {};
  /// Id of the job; ranks of other jobs are refused. Default: TUTTI_JOB_ID.
  std::string job_id = {};
  /// Allows an address that other machines can reach, even without a secret. Set it only on
  /// isolated networks.
  bool allow_insecure_network = false;
  /// Lets another thread cancel the connection attempt: connect_ranks() then throws the reason
  /// passed to Interruption::raise(). May be null.
  std::shared_ptr<const Interruption> interruption = nullptr;
};

}  // namespace tutti
