// Fuzzes the header of collective calls: any input gives an Error, or a header that survives
// encoding and decoding.
// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "cross_device_ops/collective_header.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti::internal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz(data, size, [](std::string_view bytes) {
    const CollectiveHeader header = decode_header(std::as_bytes(std::span(bytes)));
    const EncodedHeader again = encode(header);
    // The bytes after the last field are not compared.
    const auto* const fields = reinterpret_cast<const char*>(again.data());
    if (!std::equal(fields, fields + kEncodedHeaderBytes - 4, bytes.data())) std::abort();
    CollectiveHeader other = header;
    if (header.difference(other)) std::abort();
    ++other.count;
    if (header.describe().empty() || mismatch_message(header, other).empty()) std::abort();
  });
}
