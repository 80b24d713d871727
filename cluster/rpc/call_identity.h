// Client and server of a stream, as its metadata names them (calls.proto).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

#include "calls.pb.h"
#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"

namespace tutti::internal {

inline constexpr const char* kCallerKey = "tutti-caller-bin";
inline constexpr const char* kServerKey = "tutti-server-bin";

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

/// "/tutti.v1.ParameterServer/Apply".
const char* path_of(RpcMethod method);

v1::Caller make_caller(const RpcClientOptions& options, std::uint64_t client);
/// Nothing: a client that does not say who it is. Throws kDataLoss for bytes that are no Caller.
std::optional<v1::Caller> caller_in(const Metadata& metadata);
/// Why the server does not answer this caller; "": it does.
std::string refusal_of(const v1::Caller& caller, const RpcServerOptions& options);

v1::CalledServer make_called_server(const RpcServerOptions& options, std::uint64_t run);
/// Nothing: there is none, or it is none.
std::optional<v1::CalledServer> called_server_in(const Metadata& metadata);

}  // namespace tutti::internal
