// A gRPC server of a job: at a UNIX-domain socket, or behind mutual TLS.
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
  /// Returns "" if it has the lock, else the text of the process that has it after `patience`.
  std::string try_to_lock(Duration patience);

  Endpoint endpoint_;
  std::string path_;
  FileDescriptor lock_;
};

/// Where a server is to listen; `who` begins messages. Throws kInvalidArgument for a text that is
/// no address, and as check_exposure().
Endpoint checked_listen_address(std::string_view who, const std::string& text,
                                const Exposure& exposure);

/// Serves until shutdown(), with health checking and reflection. At a loopback address it listens
/// at local_socket_path() and on no port, unless there are TLS files; elsewhere it asks for a
/// certificate of the job (derive_identity(), or of the files) before HTTP/2 begins, and bounds how
/// many connections an address opens; at "0.0.0.0" and "::" it does both. Threads: any.
class GrpcServer {
 public:
  /// `services` live longer. Throws kUnavailable for an address that cannot be used, naming the
  /// process that has it (when the system tells).
  GrpcServer(const GrpcOptions& options, const std::vector<grpc::Service*>& services);
  /// shutdown() at once.
  ~GrpcServer();

  /// With the port that it got.
  const Endpoint& endpoint() const { return endpoint_; }
  /// Takes no more calls, and cancels those that do not end in time.
  void shutdown(Duration grace);

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  // gRPC writes a line for each TLS handshake that fails: fewer come than where we write them.
  static constexpr double kMostConnections = 512, kConnectionsPerSecond = 16;  // of one address

  void accept_all();
  void hand_over(FileDescriptor socket);

  Endpoint endpoint_;
  const FileDescriptor wake_;
  std::optional<Listener> listener_;
  std::list<LocalSocketClaim> claims_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  Event stop_;
  AddressLimit limit_{kMostConnections, kConnectionsPerSecond};  // the thread's
  RefusalLog refusals_{"grpc"};                                  // the same
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
