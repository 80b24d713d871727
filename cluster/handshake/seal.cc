// Counting and sealing frames.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/handshake/seal.h"

#include <algorithm>

#include "tutti/cluster/handshake/byte_stream.h"

namespace tutti {

SealBytes FrameSeals::next(std::span<const std::byte> frame) {
  internal::ByteWriter count;
  count.number(count_++);
  HmacSha256 hmac(key_);
  hmac.update(count.bytes());
  hmac.update(frame);
  const Digest256 digest = hmac.digest();
  SealBytes seal{};
  std::copy_n(digest.begin(), seal.size(), seal.begin());
  return seal;
}

bool FrameSeals::is_next(std::span<const std::byte> frame, std::span<const std::byte> seal) {
  return equal_in_constant_time(next(frame), seal);
}

}  // namespace tutti
