// Fuzzes what a parameter server reads back from its disk.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/byte_codec.h"
#include "strategy/parameter_server/server/server_files.h"
#include "tests/fuzz/plain_or_checked.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

using Bytes = std::vector<std::byte>;

RecordReader::Source within(std::span<const std::byte> bytes) {
  return [bytes](std::uint64_t offset, std::span<std::byte> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) std::abort();
    source_of(bytes)(offset, out);
  };
}

RecordWriter::Sink into(Bytes& bytes) {
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
    const SavedSnapshot saved = read_snapshot("snapshot", file.size(), within(file));
    const Bytes again = file_of(saved);
    if (file_of(read_snapshot("again", again.size(), within(again))) != again) std::abort();
    VariableStore("ps 0").restore(saved.snapshot);
  } catch (const Error& error) {
    const bool is_format = error.code() == ErrorCode::kUnimplemented;
    if (error.code() != ErrorCode::kDataLoss && !is_format) std::abort();
  }
}

std::span<const std::byte> take(std::span<const std::byte>& input, std::uint64_t wanted) {
  const auto piece =
      input.first(static_cast<std::size_t>(std::min<std::uint64_t>(wanted, input.size())));
  input = input.subspan(piece.size());
  return piece;
}

/// The input behind the checksums, which would keep it out otherwise: the label with its length,
/// eight bytes, then records: u32 and u64 lengths of message and tensors, and both.
Bytes checked(std::span<const std::byte> input) {
  const auto length = take(input, 1);
  const auto label = take(input, length.empty() ? 0 : std::to_integer<unsigned>(length.front()));
  (void)take(input, 8);
  Bytes file;
  RecordWriter out(snapshot_kind(), label, into(file));
  while (!input.empty()) {
    ByteReader lengths(take(input, 12));
    const auto message_bytes = lengths.number<std::uint32_t>();
    const auto tensor_bytes = lengths.number<std::uint64_t>();
    const auto message = take(input, message_bytes);
    out.put({{message.begin(), message.end()}, {{take(input, tensor_bytes), nullptr}}});
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz_plain_or_checked(data, size, read_damaged, checked);
}
