// Fuzzes the header of collective calls: any bytes give a header that survives a round trip, or an
// Error.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "cross_device_ops/collective_header.h"
#include "tutti/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::internal;
  try {
    const CollectiveHeader header = decode_header(std::as_bytes(std::span(data, size)));
    const EncodedHeader again = encode(header);
    // The bytes after the last field are not part of it.
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(again.data());
    if (!std::equal(bytes, bytes + kEncodedHeaderBytes - 4, data)) std::abort();
    CollectiveHeader other = header;
    if (header.difference(other)) std::abort();
    ++other.count;
    if (header.describe().empty() || mismatch_message(header, other).empty()) std::abort();
  } catch (const tutti::Error&) {
  }
  return 0;
}
