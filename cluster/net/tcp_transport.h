// Messages between processes over TCP, one connection per pair of ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "tutti/cluster/net/job_secret.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

struct TcpOptions {
  /// Of this machine, as the other ranks reach it: a number or a name.
  std::string address = "127.0.0.1";
  /// For finding and connecting all ranks.
  Duration timeout = std::chrono::seconds(30);
  /// In front of the group's keys in the store. Groups that exist at once need different ones.
  std::string key_prefix = "tcp";
  /// Messages that came before their recv() are kept, this much in all; beyond it the connection
  /// that brings more fails with kResourceExhausted.
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// See ConnectOptions.
  JobSecret secret = {};
  std::string job_id = {};
  bool allow_insecure_network = false;
};

/// Connects this rank with all others, who call it too. Every rank listens on a free port and
/// publishes it in `store` (used during this call only) with a number of its own that is new each
/// time, so what an earlier run left in the store is recognized. Every connection begins with a
/// handshake that proves the job's secret both ways; strangers, other jobs, versions and numerics
/// are refused in one line of the log. Throws kDeadlineExceeded naming the ranks that did not come,
/// kInvalidArgument for ranks out of range, for a peer with another size, version or numerics, and
/// for an address that other machines reach without a secret, kUnavailable for an address that
/// cannot be used.
///
/// There is no thread: a rank that waits for a Work (or tests it) moves the bytes of all. A send()
/// writes at once what the socket takes, and has ended when the system has all its bytes. Every
/// message has a CRC32C. A connection that breaks, falls silent (tcp_stream.h) or brings a
/// message that is not what was sent stays broken: whatever waits for that peer, now or later,
/// throws kUnavailable naming rank and address, after the last message that arrived whole. The
/// destructor lingers until the system of each peer has all that was sent, or the peer is gone: for
/// 2 s at most, 0.2 s after abort(), which may take as long itself when a peer reads slowly.
std::shared_ptr<Transport> tcp_transport(int rank, int size, KeyValueStore& store,
                                         const TcpOptions& options = {});

}  // namespace tutti
