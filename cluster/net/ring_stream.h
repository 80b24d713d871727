// The bytes of one peer on the same host: two rings, and a socket that rings the bell.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/segment.h"

namespace tutti::internal {

struct RingStreamParts {
  std::shared_ptr<const Segment> own;   // with the ring to the peer
  std::shared_ptr<const Segment> peer;  // with the ring to this rank
  FileDescriptor socket;                // local, connected
  std::string name;                     // of the peer: "rank 2 (pid 4711)"
};
std::unique_ptr<ByteStream> ring_stream(RingStreamParts parts);

}  // namespace tutti::internal
