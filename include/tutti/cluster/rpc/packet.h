// A message between two processes: a small head and a payload that nobody copies on the way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tutti/tensor/buffer.h"

namespace tutti {

/// The methods of the services in cluster/proto that are streams of calls (calls.proto): Apply and
/// Run of Worker, Operate of Session.
enum class RpcMethod { kApply, kRun, kOperate };

/// Bytes and what keeps them as they are: they do not change while `owner` lives. A value.
struct SharedBytes {
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = {};
};

/// The head is what the receiver parses (at most kLongestHead bytes); the payload is handed on as
/// it lies, in pieces. Lengths of the pieces are not kept: the receiver gets the same bytes in
/// order: mostly in one piece that is aligned to 64 bytes, within a process in those of the sender,
/// and as answers of the wire grpc in such as came. What is in the payload stands in the head. A
/// value.
struct Packet {
  std::vector<std::byte> head = {};
  std::vector<SharedBytes> payload = {};

  std::size_t payload_bytes() const;
};

/// In bytes; a longer head is refused.
inline constexpr std::size_t kLongestHead = std::size_t{4} << 20;

/// Bytes `first` to `first + count` of a payload: without a copy where they lie in one piece,
/// else in new memory aligned to 64 bytes. Throws kDataLoss when the payload is shorter.
SharedBytes payload_range(const Packet& packet, std::size_t first, std::size_t count);

namespace internal {

/// New bytes, aligned to 64, with undefined content, from the host's caching allocator: whoever
/// receives large payloads one after the other gets warm pages. Copies name the same bytes. Throws
/// kResourceExhausted.
class PayloadMemory {
 public:
  PayloadMemory() = default;
  explicit PayloadMemory(std::size_t count);
  std::span<std::byte> bytes() const { return bytes_; }
  /// The same, for readers.
  SharedBytes shared() const { return {bytes_, owner_}; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// The memory that received bytes are a part of: null for those that are in no PayloadMemory.
BufferRef buffer_of(const SharedBytes& bytes);

}  // namespace internal

}  // namespace tutti
