// Raw bytes. (Not in the header: inlined, g++ 12 warns falsely of the vector's growing.)
// SPDX-License-Identifier: Apache-2.0
#include "core/byte_codec.h"

namespace tutti::internal {

void ByteWriter::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

}  // namespace tutti::internal
