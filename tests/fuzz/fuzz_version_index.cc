// Fuzzes the reader of indexes of checkpoint versions: any text gives an index or an Error, and an
// accepted index can be written and read again. The checksum is added to the text, because hardly
// any input would pass it.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/version.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;

void read(std::string_view text) {
  try {
    const internal::VersionIndex index = internal::parse_index(text, "fuzz");
    const std::string again = internal::format_index(index);
    if (!(internal::parse_index(again, "again") == index)) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kUnimplemented) {
      std::abort();
    }
  }
}

/// Returns "" if `text` is not a JSON object.
std::string sealed(std::string_view text) {
  try {
    Json::Object members = Json::parse(text).as_object();
    if (!members.empty()) members.pop_back();
    return internal::sealed(Json(std::move(members)));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text);
  read(sealed(text));
  return 0;
}
