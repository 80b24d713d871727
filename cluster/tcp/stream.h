// Listening at a given port, connecting with a reason when it fails, and moving bytes without
// waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// "host:port" where the port may be 0. Nothing: no such text.
std::optional<Endpoint> parse_listen_address(const std::string& text);

/// Listens at exactly this address and port; 0: a free one. Throws kUnavailable naming them, the
/// system's reason and, when the port is taken, the process that has it (if the system tells).
Listener listen_at(const Endpoint& endpoint);

/// Throws kInvalidArgument "<where>: expected an address of this machine ..." where listening fails
/// and waiting is no remedy: a port that is taken may become free.
void check_can_listen(const std::string& where, const Endpoint& endpoint);

enum class ByteFlow { kOpen, kClosed };
/// Reads what is there, at most `bytes`; `count` says how much it was.
ByteFlow read_now(const FileDescriptor& socket, std::span<std::byte> bytes, std::size_t& count);
/// Writes what fits.
ByteFlow write_now(const FileDescriptor& socket, std::span<const std::byte> bytes,
                   std::size_t& count);
/// The same with several places, one after the other.
ByteFlow read_now(const FileDescriptor& socket, std::span<iovec> places, std::size_t& count);
ByteFlow write_now(const FileDescriptor& socket, std::span<const iovec> places, std::size_t& count);

/// What came of an attempt to connect.
struct OpenedConnection {
  FileDescriptor socket = {};    // not open: it failed
  std::string reason = {};       // why
  bool is_nobody_there = false;  // the system says that nobody listens
  bool is_hopeless = false;      // no such host, or lies_in_this_machine(): waiting is no remedy
};
OpenedConnection connect_until(const Endpoint& endpoint, TimePoint deadline);

/// Both ends see its end, also while somebody holds the descriptor; what was written still arrives.
void end_connection(const FileDescriptor& socket);
/// Connecting to a free port of this machine can end at the socket itself (simultaneous open).
bool is_connected_to_itself(const FileDescriptor& socket);
/// "10.0.0.9": where the other end is, without the port, which differs each time.
std::string address_of_peer(const FileDescriptor& socket);

}  // namespace tutti::internal
