// The bytes of one peer over one TCP connection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/socket.h"

namespace tutti::internal {

/// `socket` is connected; `peer` is how errors name the other side: "rank 2 (10.0.0.3:4711)". A
/// connection that breaks stays broken: read() throws kUnavailable with the system's reason. A
/// machine or a link that falls silent breaks it within 5 s (keep-alive, TCP_USER_TIMEOUT).
std::unique_ptr<ByteStream> tcp_stream(FileDescriptor socket, std::string peer);

}  // namespace tutti::internal
