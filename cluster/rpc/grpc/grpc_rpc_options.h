// What both ends of the wire "grpc" for calls are set to: large frames, watchful connections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

namespace tutti::internal {

grpc::ChannelArguments rpc_channel_arguments();
void set_rpc_arguments(grpc::ServerBuilder& builder);

}  // namespace tutti::internal
