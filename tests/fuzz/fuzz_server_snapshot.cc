// Fuzzes what a parameter server reads back from its disk.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tests/fuzz/plain_or_checked.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/server/server_files.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

using Bytes = std::vector<std::byte>;

CheckedReader::Source source_of(std::span<const std::byte> bytes) {
  return [bytes](std::uint64_t offset, std::span<std::byte> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) std::abort();
    std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
  };
}

CheckedWriter::Sink into(Bytes& bytes) {
  return [&bytes](std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  };
}

Bytes file_of(const SavedSnapshot& saved) {
  Bytes bytes;
  write_snapshot(saved, into(bytes));
  return bytes;
}

/// What was accepted can be saved again, and is the same then; a server starts with it.
void read_damaged(std::span<const std::byte> file) {
  try {
    const SavedSnapshot saved = read_snapshot("snapshot", file.size(), source_of(file));
    const Bytes again = file_of(saved);
    if (file_of(read_snapshot("again", again.size(), source_of(again))) != again) std::abort();
    VariableStore("ps 0").restore(saved.snapshot);
  } catch (const Error& error) {
    const bool is_format = error.code() == ErrorCode::kUnimplemented;
    if (error.code() != ErrorCode::kDataLoss && !is_format) std::abort();
  }
}

/// The input behind the checksums, which would keep it out otherwise: label, then body.
Bytes checked(std::span<const std::byte> input) {
  const std::size_t wanted = input.empty() ? 0 : std::to_integer<std::size_t>(input.front());
  if (!input.empty()) input = input.subspan(1);
  const auto label = input.first(std::min(wanted, input.size()));
  Bytes file;
  CheckedWriter out(snapshot_kind(), label, into(file));
  out.put(input.subspan(label.size()));
  out.finish();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz_plain_or_checked(data, size, read_damaged, checked);
}
