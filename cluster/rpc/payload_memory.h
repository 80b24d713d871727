// Memory that a payload is read into.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

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

}  // namespace tutti::internal
