// GrpcServer: a gRPC server on a UNIX-domain socket or with mutual TLS.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/grpc/grpc_channel.h"
#include "cluster/net/socket.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Returns the path of the socket for a loopback address:
/// /tmp/tutti-<user>/<network>/127.0.0.1_4711. Like ports, paths belong to one network namespace.
std::string local_socket_path(const Endpoint& endpoint);

/// Returns true if the socket exists, even if its process was killed.
bool has_local_socket(const Endpoint& endpoint);

/// Exclusive right to listen at a path; the destructor removes the socket. A lock on a file next to
/// the socket represents this right, because the socket's file remains if the process is killed.
class LocalSocketClaim {
 public:
  /// Port 0 selects a free port. Throws kUnavailable if another process is already listening there,
  /// naming that process, or if the folder belongs to another user.
  explicit LocalSocketClaim(const Endpoint& endpoint);
  ~LocalSocketClaim();
  LocalSocketClaim(const LocalSocketClaim&) = delete;
  LocalSocketClaim& operator=(const LocalSocketClaim&) = delete;

  /// Returns the address with the assigned port.
  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& path() const { return path_; }

 private:
  /// Returns "" if the lock is obtained within `patience`, else a description of the process that
  /// holds it.
  std::string try_to_lock(Duration patience);

  Endpoint endpoint_;
  std::string path_;
  FileDescriptor lock_;
};

/// Parses the address for a server; errors begin with `who`. Throws kInvalidArgument if it is not
/// an address, and the errors of check_exposure().
Endpoint checked_listen_address(std::string_view who, const std::string& text,
                                const Exposure& exposure);

/// Serves until shutdown(), with health checking and reflection. On a loopback address without TLS
/// files, it listens only on the socket local_socket_path(), not on a port. On other addresses, it
/// requires a certificate of the job (derive_identity() or TLS files) before HTTP/2 begins, and
/// limits the connections per address. On "0.0.0.0" and "::", it listens on both the socket and the
/// port. Thread-safe.
class GrpcServer {
 public:
  /// `services` must outlive the server. Throws kUnavailable for an unusable address, naming the
  /// process that uses the port, if that process is visible.
  GrpcServer(const GrpcOptions& options, const std::vector<grpc::Service*>& services);
  /// Calls shutdown() without a grace period.
  ~GrpcServer();

  /// Returns the address with the assigned port.
  const Endpoint& endpoint() const { return endpoint_; }
  /// Stops accepting calls, and cancels calls that do not end within `grace`.
  void shutdown(Duration grace);

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  // Lower than the defaults of AddressLimit, because gRPC logs each failed TLS handshake.
  static constexpr double kMostConnections = 512, kConnectionsPerSecond = 16;

  void accept_all();
  void adopt_socket(FileDescriptor socket);

  Endpoint endpoint_;
  const FileDescriptor wake_;
  std::optional<Listener> listener_;
  std::list<LocalSocketClaim> claims_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  Event stop_;
  AddressLimit limit_{kMostConnections, kConnectionsPerSecond};  // used by thread_
  RefusalLog refusals_{"grpc"};                                  // used by thread_
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
