// Fuzzes the reader of a checkpoint version's index: every text must yield an index or an Error,
// and every accepted index must survive a write and a read. Each input is read unchanged, and
// again with a correct checksum, which random inputs almost never have.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti;

namespace {

void read(std::string_view text) {
  const internal::VersionIndex index = internal::parse_index(text, "fuzz");
  if (!(internal::parse_index(internal::format_index(index), "again") == index)) std::abort();
}

/// Returns `text` with a correct checksum as its last member, or "" if it is not a JSON object.
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
  const std::initializer_list<ErrorCode> codes = {ErrorCode::kDataLoss, ErrorCode::kUnimplemented};
  fuzz(
      data, size, [](std::string_view text) { read(text); }, codes);
  return fuzz(
      data, size, [](std::string_view text) { read(sealed(text)); }, codes);
}
