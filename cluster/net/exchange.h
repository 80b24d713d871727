// Handing segments over between processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/interruption.h"
#include "tutti/cluster/net/segment.h"

namespace tutti::internal {

/// Sends the descriptor of `own` over a new local connection.
void send_segment(const FileDescriptor& socket, const Segment& own, const std::string& peer);
/// The segment that rank `peer_rank` of `size` has sent. Throws kDeadlineExceeded and kUnavailable
/// naming the peer, kDataLoss for what is no such segment, and what `interruption` says; may be
/// null.
std::shared_ptr<Segment> receive_segment(const FileDescriptor& socket, int peer_rank, int size,
                                         const std::string& peer, TimePoint deadline,
                                         const Interruption* interruption = nullptr);

}  // namespace tutti::internal
