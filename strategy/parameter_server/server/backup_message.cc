// A kind and two numbers in front of the head; states as the bytes of a snapshot's file.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_message.h"

#include <memory>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr auto kFirst = std::byte{0x50};  // orders: 0x30, batches 0x1., answers 0x2.
constexpr std::size_t kFrontBytes = 1 + 1 + 4 + 8;

}  // namespace

bool is_backup_message(const Packet& packet) {
  return !packet.head.empty() && packet.head.front() == kFirst;
}

Packet encode(const BackupMessage& message, Packet content) {
  ByteWriter out;
  out.raw({&kFirst, 1});
  out.number(static_cast<std::uint8_t>(message.kind));
  out.number(static_cast<std::uint32_t>(message.server));
  out.number(message.term);
  out.raw(content.head);
  return {std::move(out.bytes()), std::move(content.payload)};
}

BackupMessage decode_backup_message(Packet& packet) {
  ByteReader in(packet.head);
  (void)in.number<std::uint8_t>();
  BackupMessage message;
  const auto kind = in.number<std::uint8_t>();
  message.kind = static_cast<BackupMessage::Kind>(kind);
  message.server = static_cast<int>(in.number<std::uint32_t>());
  message.term = in.number<std::uint64_t>();
  const bool has_content = message.kind == BackupMessage::Kind::kBatch;
  const bool is_sound = is_backup_message(packet) && !in.failed() && kind >= 1 && kind <= 3 &&
                        (has_content || in.num_left() == 0);
  if (!is_sound) {
    fail(ErrorCode::kDataLoss, "expected a message about a copy of a server, got a head of ",
         packet.head.size(), " bytes");
  }
  packet.head.erase(packet.head.begin(), packet.head.begin() + kFrontBytes);
  return message;
}

Packet state_packet(const StoreSnapshot& state) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  bytes->reserve(about_size(state));
  write_snapshot({{}, state}, [&](std::span<const std::byte> piece) {
    bytes->insert(bytes->end(), piece.begin(), piece.end());
  });
  return {{}, {{*bytes, bytes}}};
}

StoreSnapshot state_in(const Packet& packet, const std::string& who) {
  const SharedBytes all = payload_range(packet, 0, packet.payload_bytes());
  return read_snapshot(who, all.bytes.size(),
                       [&](std::uint64_t offset, std::span<std::byte> out) {
                         const auto piece = all.bytes.subspan(static_cast<std::size_t>(offset));
                         std::copy_n(piece.begin(), out.size(), out.begin());
                       })
      .snapshot;
}

}  // namespace tutti::internal
