// What a server and the one that keeps its copy say to each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/server/snapshot_file.h"

namespace tutti::internal {

/// Of server `server`, whose copy began under the term `term`.
struct BackupMessage {
  enum class Kind : std::uint8_t {
    kState = 1,  // the copy begins with this state
    kBatch = 2,  // and goes on with this batch
    kFetch = 3,  // answered with the copy's state
  };
  Kind kind = Kind::kState;
  int server = 0;
  std::uint64_t term = 0;
};

/// Whether the packet is one of these, and no order or batch.
bool is_backup_message(const Packet& packet);
/// `content`: the batch, encoded; else empty, or of state_packet().
Packet encode(const BackupMessage& message, Packet content = {});
/// Takes what stands in front of the content away from the packet. Throws kDataLoss.
BackupMessage decode_backup_message(Packet& packet);

/// A state in the payload, as in a file of snapshots.
Packet state_packet(const StoreSnapshot& state);
/// Throws kDataLoss naming `who`.
StoreSnapshot state_in(const Packet& packet, const std::string& who);

}  // namespace tutti::internal
