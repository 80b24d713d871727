// Fuzzes what a server reads from a client that proved itself: frames of calls on the wire tcp.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/cluster/rpc/tcp_bytes.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;
using internal::RpcFrame;

constexpr std::size_t kLongest = 1 << 20;

/// Makes the checksums of the first frame right: else hardly any input would be more than damaged.
void mend(std::vector<std::byte>& bytes) {
  using internal::ByteReader;
  using internal::ByteWriter;
  using internal::crc32c_of;
  if (bytes.size() < internal::kRpcFixedBytes) return;
  ByteReader reader(std::span<const std::byte>(bytes).subspan(16));
  const std::size_t head = reader.number<std::uint32_t>();
  const std::size_t numbers = reader.number<std::uint32_t>();
  const auto payload = reader.number<std::uint64_t>();
  const auto rest = std::span<const std::byte>(bytes).subspan(internal::kRpcFixedBytes);
  const auto put = [&](std::size_t at, std::uint32_t number) {
    ByteWriter writer;
    writer.number(number);
    std::ranges::copy(writer.bytes(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  };
  const std::size_t body = 8 * numbers + head;
  if (body <= rest.size()) put(32, crc32c_of(rest.first(body)));
  ByteWriter count;
  count.number(std::uint64_t{0});
  const std::uint32_t begin = crc32c_of(count.bytes(), crc32c_of(Digest256{}));
  put(36, crc32c_of(std::span<const std::byte>(bytes).first(36), begin));
  const bool has_payload = body <= rest.size() && payload > 0 && payload <= kLongest &&
                           rest.size() - body >= payload + 4;
  if (has_payload && payload <= internal::kPieceBytes) {
    put(internal::kRpcFixedBytes + body + payload, crc32c_of(rest.subspan(body, payload)));
  }
}

/// Frames until one is damaged; nothing but kDataLoss is thrown.
std::vector<RpcFrame> read(std::span<const std::byte> bytes, std::size_t at_once) {
  internal::RpcReader reader({}, kLongest);
  std::vector<RpcFrame> frames;
  try {
    while (!bytes.empty()) {
      std::size_t count = 0;
      for (const auto& place : reader.places()) {
        const std::size_t n = std::min({place.size(), at_once - count, bytes.size()});
        std::copy_n(bytes.begin(), n, place.begin());
        bytes = bytes.subspan(n);
        count += n;
      }
      if (count == 0) std::abort();
      reader.filled(count);
      while (auto frame = reader.next({})) frames.push_back(*std::move(frame));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
  return frames;
}

/// What was taken is what a writer writes, byte by byte.
void check(const std::vector<RpcFrame>& frames, std::span<const std::byte> bytes) {
  internal::RpcWriter writer(Digest256{});
  for (const RpcFrame& frame : frames) writer.push(frame);
  std::vector<RpcFrame> sent;
  while (!writer.is_empty()) {
    std::size_t count = 0;
    for (const iovec& place : writer.next()) {
      const auto* const data = static_cast<const std::byte*>(place.iov_base);
      if (place.iov_len > bytes.size() || !std::equal(data, data + place.iov_len, bytes.begin())) {
        std::abort();
      }
      bytes = bytes.subspan(place.iov_len);
      count += place.iov_len;
    }
    writer.wrote(count, sent);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> mended(input.begin(), input.end());
  mend(mended);
  for (const std::span<const std::byte> bytes : {input, std::span<const std::byte>(mended)}) {
    const auto frames = read(bytes, std::size_t{1} << 30);
    check(frames, bytes);
    const std::size_t at_once = size == 0 ? 1 : 1 + data[size - 1] % 97;
    if (read(bytes, at_once).size() != frames.size()) std::abort();
  }
  return 0;
}
