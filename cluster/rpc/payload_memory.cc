// Payloads in buffers of the host's allocator.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/payload_memory.h"

#include <cstring>

#include "tutti/tensor/buffer.h"

namespace tutti::internal {

PayloadMemory::PayloadMemory(std::size_t count) {
  if (count == 0) return;
  const auto buffer = std::make_shared<BufferRef>(BufferRef::allocate(count));
  bytes_ = {(*buffer)->data(), count};
  owner_ = buffer;
}

SharedBytes copied(std::span<const SharedBytes> pieces) {
  std::size_t total = 0;
  for (const SharedBytes& piece : pieces) total += piece.bytes.size();
  const PayloadMemory memory(total);
  std::size_t done = 0;
  for (const SharedBytes& piece : pieces) {
    const std::size_t n = piece.bytes.size();
    if (n > 0) std::memcpy(memory.bytes().data() + done, piece.bytes.data(), n);
    done += n;
  }
  return memory.shared();
}

}  // namespace tutti::internal
