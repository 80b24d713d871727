// A gRPC server of a job: at a UNIX-domain socket, or behind mutual TLS.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/grpc/grpc_channel.h"

namespace tutti::internal {

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
  const Endpoint& endpoint() const;
  /// Takes no more calls, and cancels those that do not end in time.
  void shutdown(Duration grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::internal
