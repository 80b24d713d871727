// Channels to a job's gRPC servers, and what their errors mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "tutti/cluster/handshake/job_secret.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/core/error.h"

namespace tutti::internal {

struct GrpcChannelOptions {
  Endpoint endpoint = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Of one message.
  int most_bytes = 4 << 20;
  /// Whether it is a UNIX-domain socket: at loopback addresses, unless there are TLS files.
  bool is_local() const { return is_loopback(endpoint.host) && !tls.is_set(); }
};

/// To where GrpcServer listens with the same options. Connects with the first call; each channel
/// has connections of its own, so that a new one does not share the fate of the last.
std::shared_ptr<grpc::Channel> open_channel(const GrpcChannelOptions& options);

/// A handler's error; finish the call with it.
grpc::Status to_status(grpc::ServerContextBase& context, const Error& error);
/// Whether a handler said so: a channel's errors may pass when the call is made again.
bool is_of_handler(const grpc::ClientContext& context);
Error to_error(const grpc::Status& status);

/// Why a channel could not connect, in the system's words.
std::string connect_reason(const grpc::Status& status);

}  // namespace tutti::internal
