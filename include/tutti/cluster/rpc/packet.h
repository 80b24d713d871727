// Packet: a message between two processes, with a small head and a payload that is sent uncopied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tutti/tensor/buffer.h"

namespace tutti {

/// RPC methods that carry a stream of calls (calls.proto): ParameterServer.Apply, Worker.Run and
/// Session.Operate.
enum class RpcMethod { kApply, kRun, kOperate };

/// Bytes together with their owner: they do not change while `owner` lives. A value type.
struct SharedBytes {
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = {};
};

/// Message with a head that the receiver parses (at most kLongestHead bytes) and a payload that is
/// sent in chunks, without copying large ones. The head describes the payload. The receiver gets
/// the bytes in order, usually in one chunk aligned to 64 bytes. Within a process, it gets the
/// sender's chunks; a reply over gRPC keeps the chunks in which it arrived. A value type.
struct Packet {
  std::vector<std::byte> head = {};
  std::vector<SharedBytes> payload = {};

  std::size_t payload_bytes() const;
};

/// Maximum length of a head, in bytes; a longer head is rejected.
inline constexpr std::size_t kLongestHead = std::size_t{4} << 20;

/// Returns bytes [first, first + count) of the payload, without a copy if they are in one chunk,
/// otherwise in new memory aligned to 64 bytes. Throws kDataLoss if the payload is shorter.
SharedBytes payload_range(const Packet& packet, std::size_t first, std::size_t count);

namespace internal {

/// Uninitialized memory, aligned to 64 bytes, from the host's caching allocator, so that a receiver
/// of consecutive large payloads reuses warm pages. Copies share the same bytes. Throws
/// kResourceExhausted.
class PayloadMemory {
 public:
  PayloadMemory() = default;
  explicit PayloadMemory(std::size_t count);
  std::span<std::byte> bytes() const { return bytes_; }
  /// Returns a read-only view that shares ownership.
  SharedBytes shared() const { return {bytes_, owner_}; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// Returns the PayloadMemory's buffer that contains `bytes`; null if they are not part of one.
BufferRef buffer_of(const SharedBytes& bytes);

}  // namespace internal

}  // namespace tutti
