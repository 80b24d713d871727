// UNIX-domain sockets that stand for loopback addresses: only processes of this user reach them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cluster/net/socket.h"

namespace tutti::internal {

/// Where a server at this loopback address listens: /tmp/tutti-<user>/<network>/127.0.0.1_4711.
/// As ports do, paths belong to one network namespace.
std::string local_socket_path(const Endpoint& endpoint);

/// Whether there is a socket; that of a killed process, too.
bool has_local_socket(const Endpoint& endpoint);

/// The right to listen at a path, as long as it lives; removes the socket in the end. A lock file
/// beside the socket decides, for the file of a socket outlives a killed process.
class LocalSocketClaim {
 public:
  /// Port 0: a free one. Throws kUnavailable when another process listens there, naming it, and
  /// when the folder belongs to another user.
  explicit LocalSocketClaim(const Endpoint& endpoint);
  ~LocalSocketClaim();
  LocalSocketClaim(const LocalSocketClaim&) = delete;
  LocalSocketClaim& operator=(const LocalSocketClaim&) = delete;

  /// With the port that it got.
  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& path() const { return path_; }

 private:
  /// "": it has the lock; else the text of the process that has it.
  std::string try_to_lock();

  Endpoint endpoint_;
  std::string path_;
  FileDescriptor lock_;
};

}  // namespace tutti::internal
