// Parts of a snapshot as messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/server/snapshot_file.h"

namespace tutti::internal {

std::vector<std::byte> encode_for_file(const SnapshotLabel& label);
/// Throws kDataLoss, as the other one, for what these functions do not write.
SnapshotLabel decode_label(std::span<const std::byte> bytes);

/// A shard is written as the operations that would make it: its creation, and the gradients that
/// it holds.
Packet encode_for_file(const ShardSnapshot& shard);
ShardSnapshot decode_shard(const Packet& packet);

}  // namespace tutti::internal
