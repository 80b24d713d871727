// Fuzzes the reader of checkpoint manifests: any text gives a manifest or an Error, and what was
// read can be written and read again. The text also gets the checksum that it lacks, or hardly any
// input would pass it.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "core/hash.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;

void read(std::string_view text) {
  try {
    const internal::Manifest manifest = internal::parse_manifest(text, "fuzz");
    const std::string again = internal::format_manifest(manifest);
    if (!(internal::parse_manifest(again, "again") == manifest)) std::abort();
    internal::require_whole(manifest, "fuzz");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kUnimplemented) {
      std::abort();
    }
  }
}

std::string sealed(std::string_view text) {
  const std::string_view body = text.substr(0, text.rfind(internal::kManifestTail));
  Hasher hasher;
  hasher.update(body);
  return concat(body, internal::kManifestTail, hasher.hex_digest(), internal::kManifestEnd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text);
  read(sealed(text));
  return 0;
}
