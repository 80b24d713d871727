// Sizes that fit pieces of a mebibyte, and pings.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/grpc/grpc_rpc_options.h"

#include <utility>

#include "tutti/cluster/rpc/grpc/grpc_frames.h"

namespace tutti::internal {
namespace {

/// The same for clients and servers.
constexpr std::pair<const char*, int> kArguments[] = {
    // A piece in one frame of HTTP/2 instead of 64, and the next while the last is on its way.
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, static_cast<int>(kPieceBytes) + 4096},
    {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
    // A machine that has gone is noticed after 15 s; whoever pings so often is no attacker.
    {GRPC_ARG_KEEPALIVE_TIME_MS, 10000},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000},
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
    {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
};

}  // namespace

grpc::ChannelArguments rpc_channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // tasks are reached directly
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(kLongestGrpcMessage);
  arguments.SetMaxSendMessageSize(kLongestGrpcMessage);
  for (const auto& [name, value] : kArguments) arguments.SetInt(name, value);
  return arguments;
}

void set_rpc_arguments(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kLongestGrpcMessage);
  builder.SetMaxSendMessageSize(kLongestGrpcMessage);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  for (const auto& [name, value] : kArguments) builder.AddChannelArgument(name, value);
}

}  // namespace tutti::internal
