// How the ranks of a TCP group find and recognize each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/interruption.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/cluster/net/socket.h"
#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {

/// What a rank publishes: "<nonce> <machine> <host:port>", "<nonce> <machine> - <local name>" or
/// all four.
struct Announcement {
  std::uint64_t nonce = 0;
  std::string machine;  // equal on ranks that share cores
  Endpoint endpoint;    // no host: there is none
  Endpoint local = {};  // the same
};
std::string to_text(const Announcement& announcement);
/// Nothing: no such text.
std::optional<Announcement> parse_announcement(std::string_view text);

struct Connection {
  FileDescriptor socket;
  std::string address;  // of the peer, for messages
  bool is_local = false;
};

/// The connections of one rank, by peer; its own is not open.
struct Connections {
  std::vector<Connection> by_rank;
  int ranks_on_this_machine = 1;
};

struct RendezvousOptions {
  std::string who = "tcp";  // in errors
  /// Where to listen for connections from other machines; nothing: nowhere.
  std::optional<std::string> address = std::nullopt;
  /// As in ConnectOptions.
  std::string listen_at = "";
  std::string reached_at = "";
  /// Whether to connect by local names where a peer of the same user is on the same machine.
  enum class Local { kNo, kYes } local = Local::kNo;
  Duration timeout = std::chrono::seconds(30);
  std::string key_prefix = "tcp";
  /// Of the job: a rank with other ones is refused.
  JobSecret secret = {};
  std::string job_id = {};
  /// As in ConnectOptions.
  const Interruption* interruption = nullptr;
};

/// Connects to every lower rank, in their order, then accepts every higher one, each with proofs of
/// both sides that they belong to one job (handshake.h). Throws as connect_ranks(); kUnavailable
/// for a peer on another machine where only local connections are allowed.
Connections connect_all(int rank, int size, KeyValueStore& store, const RendezvousOptions& options);

}  // namespace tutti::internal
