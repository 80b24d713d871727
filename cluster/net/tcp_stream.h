// The bytes of one peer over one TCP connection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/socket.h"

namespace tutti::internal {

/// `socket` is connected; `peer` is how errors name the other side: "rank 2 (10.0.0.3:4711)". A
/// connection that breaks stays broken: read() throws kUnavailable with the system's reason. So it
/// does when the machine or the link falls silent: for 5 s with nothing under way (keep-alive), for
/// 7 s with something that is not acknowledged. A peer that does not read is not silent.
std::unique_ptr<ByteStream> tcp_stream(FileDescriptor socket, std::string peer);

}  // namespace tutti::internal
