// Payloads in buffers of the host's allocator.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/payload_memory.h"

#include <utility>

namespace tutti::internal {
namespace {

/// Keeps a buffer, and is how the owner of bytes is known to do so.
struct BufferKeeper {
  BufferRef buffer;
  void operator()(const void*) const {}
};

}  // namespace

PayloadMemory::PayloadMemory(std::size_t count) {
  if (count == 0) return;
  BufferRef buffer = BufferRef::allocate(count);
  bytes_ = {buffer->data(), count};
  owner_ = std::shared_ptr<const void>(bytes_.data(), BufferKeeper{std::move(buffer)});
}

BufferRef buffer_of(const SharedBytes& bytes) {
  const auto* const keeper = std::get_deleter<BufferKeeper>(bytes.owner);
  return keeper ? keeper->buffer : BufferRef();
}

}  // namespace tutti::internal
