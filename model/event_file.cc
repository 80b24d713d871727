// TensorBoard event files: scalars over steps.
// SPDX-License-Identifier: Apache-2.0
//
// A *record* (TFRecord's format) is the length (8 bytes), its masked CRC-32C (4), the bytes and
// their masked CRC-32C (4), all little-endian. The bytes are a protocol buffer tensorflow.Event: 1
// wall_time (double), 2 step (varint), 3 file_version (string), 5 summary; a summary holds values
// (1), a value holds 1 tag (string) and 2 simple_value (float).
#include "tutti/model/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void append_tag(std::string& out, unsigned field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}

std::string new_event() {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_raw(event, wall_time_seconds());
  return event;
}

std::string event_path(const std::string& directory) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return concat(directory, "/events.out.tfevents.", static_cast<std::int64_t>(wall_time_seconds()),
                ".", host, ".", getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (unsigned char byte : bytes) crc = kCrcTable[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return ~crc;
}

EventFileWriter::EventFileWriter(const std::string& directory) : path_(event_path(directory)) {
  std::error_code ignored;  // opening the file says what is wrong
  std::filesystem::create_directories(directory, ignored);
  file_.open(path_, std::ios::binary | std::ios::app);
  std::string event = new_event();
  append_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

void EventFileWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  std::string scalar_value;
  append_bytes(scalar_value, 1, tag);
  append_tag(scalar_value, 2, kFixed32);
  append_raw(scalar_value, static_cast<float>(value));
  std::string summary;
  append_bytes(summary, 1, scalar_value);
  std::string event = new_event();
  append_tag(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  write_record(event);
}

void EventFileWriter::write_record(std::string_view event) {
  std::string record;
  append_raw(record, static_cast<std::uint64_t>(event.size()));
  append_raw(record, masked(crc32c(record)));
  record.append(event);
  append_raw(record, masked(crc32c(event)));
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  if (!file_) {
    fail(ErrorCode::kUnavailable, "EventFileWriter: cannot write ", path_, ": ",
         std::strerror(errno), "; is the folder writable and the disk not full?");
  }
}

}  // namespace tutti
