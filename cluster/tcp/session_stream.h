// A stream of bytes over TCP that outlives its connections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tutti/cluster/messages/byte_stream.h"
#include "tutti/cluster/tcp/session_hub.h"

namespace tutti::internal {

struct SessionParts {
  std::shared_ptr<SessionHub> hub;  // says how many connections there are
  FileDescriptor socket;            // the first connection
  int peer = 0;
  Endpoint endpoint;  // where the peer listens
  std::string name;   // of the peer, in errors: "rank 2 (127.0.0.1:4711)"
  Duration patience;  // for a peer that cannot be reached
};

/// Bytes travel in chunks with checksums, and are kept until the peer has said that they arrived. A
/// connection that breaks, brings a damaged chunk, or nothing at all for 2 s (both sides speak
/// twice a second, whatever their ranks do) is replaced by a new one, which the higher rank opens.
/// The chunks that did not arrive are sent again: over the other connections at once where a
/// session has several, else over the new one. While there is none, read() and write() move
/// nothing. A good-bye is acknowledged as bytes are, so that who leaves knows whether it may. A
/// peer is gone when it closed in good order, when nothing listens at its address any more, when no
/// connection to it could be opened for `patience`, or when several were opened in that time and
/// nothing that was sent over them arrived.
std::unique_ptr<ByteStream> session_stream(SessionParts parts);

}  // namespace tutti::internal
