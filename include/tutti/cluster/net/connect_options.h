// How ranks connect: options of connect_ranks().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/job_secret.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

class Interruption;  // cluster/net/socket.h

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
  /// For finding and connecting all ranks; counts from the last connection that this rank made, or
  /// the last peer that said it has all of its own.
  Duration timeout = durations::kJoinTimeout;
  /// In front of the group's keys in the store. Groups that exist at once need different ones.
  std::string key_prefix = "ranks";
  /// Messages that came before their recv() are kept, this much in all; beyond it the connection
  /// that brings more fails with kResourceExhausted.
  std::size_t bytes_kept = std::size_t{1} << 30;
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
  /// Another thread ends connecting by it: connect_ranks() throws its reason at once. May be null.
  std::shared_ptr<const Interruption> interruption = nullptr;
};

}  // namespace tutti
