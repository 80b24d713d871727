// The bytes of one socket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/messages/byte_stream.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// `peer` is how errors name the other side: "rank 2 (127.0.0.1:4711)".
std::unique_ptr<ByteStream> socket_stream(FileDescriptor socket, std::string peer);

}  // namespace tutti::internal
