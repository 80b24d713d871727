// Implements ranges within chunked payloads, and payloads stored in host-allocator buffers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/packet.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Deleter that keeps a buffer alive. buffer_of() recognizes the buffer's bytes by this deleter.
struct BufferKeeper {
  BufferRef buffer;
  void operator()(const void*) const {}
};

}  // namespace

std::size_t Packet::payload_bytes() const {
  std::size_t total = 0;
  for (const SharedBytes& piece : payload) total += piece.bytes.size();
  return total;
}

SharedBytes payload_range(const Packet& packet, std::size_t first, std::size_t count) {
  const std::size_t total = packet.payload_bytes();
  if (first > total || count > total - first) {
    fail(ErrorCode::kDataLoss, "payload_range: expected ", count, " bytes from byte ", first,
         " on, got a payload of ", total, " bytes");
  }
  if (count == 0) return {};
  auto piece = packet.payload.begin();
  for (; first >= piece->bytes.size(); ++piece) first -= piece->bytes.size();
  if (count <= piece->bytes.size() - first) {
    return {piece->bytes.subspan(first, count), piece->owner};
  }
  const internal::PayloadMemory memory(count);
  for (std::size_t done = 0; done < count; first = 0, ++piece) {
    const std::size_t n = std::min(piece->bytes.size() - first, count - done);
    if (n > 0) std::memcpy(memory.bytes().data() + done, piece->bytes.data() + first, n);
    done += n;
  }
  return memory.shared();
}

internal::PayloadMemory::PayloadMemory(std::size_t count) {
  if (count == 0) return;
  BufferRef buffer = BufferRef::allocate(count);
  bytes_ = {buffer->data(), count};
  owner_ = std::shared_ptr<const void>(bytes_.data(), BufferKeeper{std::move(buffer)});
}

BufferRef internal::buffer_of(const SharedBytes& bytes) {
  const auto* const keeper = std::get_deleter<BufferKeeper>(bytes.owner);
  return keeper ? keeper->buffer : BufferRef();
}

}  // namespace tutti
