// Writing frames and finding them in a stream.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_frame.h"

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

/// Without it a length that grew on its way would wait for bytes that never come.
std::uint32_t checksum_of(std::uint32_t size) {
  ByteWriter bytes;
  bytes.number(size);
  return crc32c_of(bytes.bytes());
}

}  // namespace

void append_frame(std::vector<std::byte>& out, const Message& message, FrameSeals& seals) {
  const std::vector<std::byte> body = encode(message);
  ByteWriter head;
  const auto size = static_cast<std::uint32_t>(body.size());
  head.number(size);
  head.number(checksum_of(size));
  head.raw(seals.next(body));
  out.insert(out.end(), head.bytes().begin(), head.bytes().end());
  out.insert(out.end(), body.begin(), body.end());
}

void FrameReader::take(std::span<const std::byte> bytes) {
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::optional<Message> FrameReader::next() {
  if (is_broken_) fail(ErrorCode::kDataLoss, "control: a frame after a damaged one");
  const auto rest = std::span<const std::byte>(bytes_).subspan(begin_);
  if (rest.size() < kControlFrameHeadBytes) return std::nullopt;
  ByteReader reader(rest);
  const auto size = reader.number<std::uint32_t>();
  const auto checksum = reader.number<std::uint32_t>();
  const auto seal = reader.raw(sizeof(SealBytes));
  is_broken_ = checksum != checksum_of(size);
  if (is_broken_) fail(ErrorCode::kDataLoss, "control: the length of a frame was damaged");
  is_broken_ = size > kLongestMessage;
  if (is_broken_) {
    fail(ErrorCode::kDataLoss, "control: a frame of ", size, " bytes; expected at most ",
         kLongestMessage);
  }
  if (reader.num_left() < size) return std::nullopt;
  const auto body = reader.raw(size);
  std::optional<Message> message;
  if (seals_.is_next(body, seal)) message = decode_message(body);
  is_broken_ = !message;
  if (is_broken_) fail(ErrorCode::kDataLoss, "control: a damaged frame of ", size, " bytes");
  begin_ += kControlFrameHeadBytes + size;
  return message;
}

}  // namespace tutti::internal
