// What both ends of the wire "grpc" are set to: certificates, limits, no look at proxies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "tutti/cluster/handshake/job_secret.h"

namespace tutti::internal {

/// An envelope holds a message and its seal, or a piece of a handshake.
inline constexpr int kLongestEnvelope = (2 << 20) + 16384;

/// Throws kNotFound or kUnavailable naming a file that cannot be read.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files);
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files);
grpc::ChannelArguments channel_arguments();

}  // namespace tutti::internal
