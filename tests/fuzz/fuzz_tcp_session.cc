// Fuzzes what sessions read: chunks in a stream that is cut anywhere, resumptions, segments'
// layouts.
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tutti/cluster/shm/segment.h"
#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/crc32c.h"
#include "tutti/cluster/tcp/session_receiver.h"

namespace {

using namespace tutti::internal;

template <std::size_t kBytes, class Decode>
void check(std::span<const std::byte> data, const Decode& decode) {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), data.data(), std::min(data.size(), kBytes));
  try {
    const auto value = decode(bytes);
    // What was accepted is what encoding gives back.
    if (decode(encode(value)) != value) std::abort();
  } catch (const tutti::Error&) {
  }
}

/// Damaged input seldom passes a checksum, so some of it gets the right one: the first byte says
/// which of the two.
void seal(std::span<std::byte> bytes) {
  if (bytes.size() < kChunkHeaderBytes) return;
  const auto payload = bytes.subspan(kChunkHeaderBytes);
  const auto length = static_cast<std::uint32_t>(payload.size());
  const auto crc = crc32c_of(payload);
  std::memcpy(bytes.data() + 8, &length, 4);
  std::memcpy(bytes.data() + 12, &crc, 4);
  const auto header = crc32c_of(bytes.first(kChunkHeaderBytes - 4));
  std::memcpy(bytes.data() + kChunkHeaderBytes - 4, &header, 4);
}

/// The receiver gives at most what was sent, whatever was sent, and stays at its error.
void read_stream(std::span<const std::byte> bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  FileDescriptor reader(ends[0]), writer(ends[1]);
  SessionReceiver receiver;
  std::array<std::byte, 100> given{};
  std::size_t total = 0;
  bool failed = false;
  const auto read_all = [&] {
    for (std::size_t count = 1; count > 0;) {
      const iovec place{given.data(), given.size()};
      try {
        count = receiver.read(reader, std::span(&place, 1));
      } catch (const tutti::Error&) {
        failed = true;
        return;
      }
      if (failed || count > given.size()) std::abort();
      total += count;
    }
  };
  const std::size_t cut = bytes.empty() ? 0 : std::to_integer<std::size_t>(bytes[0]) % 64 + 1;
  for (std::size_t at = 0; at < bytes.size() && !failed; at += cut) {
    const std::size_t count = std::min(cut, bytes.size() - at);
    if (::send(writer.get(), bytes.data() + at, count, MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(count)) {
      std::abort();
    }
    read_all();
  }
  if (total > bytes.size() || total > receiver.received()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(std::min<std::size_t>(size, 20000));
  std::memcpy(bytes.data(), data, bytes.size());
  check<kChunkHeaderBytes>(bytes, [](const auto& b) { return decode_chunk_header(b); });
  check<kResumeBytes>(bytes, [](const auto& b) { return decode_resume(b); });
  check<kResumedBytes>(bytes, [](const auto& b) { return decode_resumed(b); });
  check<kLayoutBytes>(bytes, [](const auto& b) { return decode_layout(b); });
  read_stream(bytes);
  seal(bytes);
  check<kChunkHeaderBytes>(bytes, [](const auto& b) { return decode_chunk_header(b); });
  read_stream(bytes);
  return 0;
}
