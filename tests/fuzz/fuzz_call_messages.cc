// Fuzzes CallReader, with which servers and clients read call messages. An input is a sequence of
// messages, each of which arrives in slices.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cluster/rpc/call_messages.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti::internal;

namespace {

constexpr std::size_t kLongestPayload = 1 << 20;

grpc::ByteBuffer in_slices(const std::uint8_t* data, std::size_t size, std::size_t cut) {
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < size; i += cut) {
    slices.emplace_back(data + i, std::min(cut, size - i));
  }
  return {slices.data(), slices.size()};
}

}  // namespace

/// The first byte selects which side reads, and the slice length. Messages follow, each preceded by
/// a byte with its length.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto side = data[0] % 2 == 0 ? CallReader::Side::kServer : CallReader::Side::kClient;
  const std::size_t cut = 1 + data[0] / 2;
  const auto read = [&](std::string_view) {
    CallReader reader(side, kLongestPayload);
    for (std::size_t at = 1; at < size;) {
      const std::size_t length = std::min<std::size_t>(data[at], size - at - 1);
      reader.take(in_slices(data + at + 1, length, cut));
      const auto message = reader.next();
      if (message && message->packet.payload_bytes() > kLongestPayload) std::abort();
      at += 1 + length;
    }
  };
  return tutti::fuzz(data, size, read, {tutti::ErrorCode::kDataLoss});
}
