// Records of the journal: u32 length, u32 CRC32C of what follows, u8 kind, the parts in order.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/closure_event.h"

#include <limits>
#include <optional>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kRecordHead = 8;
constexpr std::size_t kLongestPart = std::numeric_limits<std::uint32_t>::max();

/// Each event lists its parts once; Writer and Reader are called with them.
template <class Event, class Each>
void each_part(Event& event, Each&& each) {
  using T = std::remove_const_t<Event>;
  if constexpr (std::is_same_v<T, AttemptReport>) {
    each(event.kind), each(event.worker), each(event.origin), each(event.code), each(event.text);
  } else if constexpr (std::is_same_v<T, ClosureFailure>) {
    each(event.closure), each(event.attempt), each(event.worker), each(event.origin);
    each(event.code), each(event.text);
  } else if constexpr (std::is_same_v<T, events::Scheduled>) {
    each(event.number), each(event.content);
  } else if constexpr (std::is_same_v<T, events::Started>) {
    each(event.number), each(event.attempt), each(event.worker);
  } else if constexpr (std::is_same_v<T, events::Finished>) {
    each(event.number), each(event.attempt), each(event.result);
  } else if constexpr (std::is_same_v<T, events::PutBack>) {
    each(event.number), each(event.attempt), each_part(event.report, each);
  } else if constexpr (std::is_same_v<T, events::Failed>) {
    each_part(event.failure, each);
  } else if constexpr (std::is_same_v<T, events::Stopped>) {
    each(event.number), each(event.attempt);
  } else if constexpr (std::is_same_v<T, events::TookOver>) {
    each(event.term);
  } else if constexpr (std::is_same_v<T, events::CutBegan> || std::is_same_v<T, events::CutTaken>) {
    each(event.id);
  } else if constexpr (std::is_same_v<T, events::BeganAfter>) {
    each(event.term), each(event.number);
  } else {
    static_assert(std::is_same_v<T, events::ErrorRaised>);
  }
}

struct PartWriter {
  ByteWriter& bytes;
  void operator()(std::uint64_t value) { bytes.number(value); }
  void operator()(int value) { bytes.number(static_cast<std::uint32_t>(value)); }
  void operator()(const std::string& value) { bytes.text(value); }
  void operator()(ErrorCode value) { bytes.number(static_cast<std::uint8_t>(value)); }
  void operator()(ErrorOrigin value) { bytes.number(static_cast<std::uint8_t>(value)); }
  void operator()(AttemptReport::Kind value) { bytes.number(static_cast<std::uint8_t>(value)); }
};

struct PartReader {
  ByteReader& bytes;
  bool& is_sound;
  void operator()(std::uint64_t& value) { value = bytes.number<std::uint64_t>(); }
  void operator()(int& value) { value = static_cast<int>(bytes.number<std::uint32_t>()); }
  void operator()(std::string& value) { value = bytes.text(kLongestPart); }
  void operator()(ErrorCode& value) { one_of(value, 0, 15); }
  void operator()(ErrorOrigin& value) { one_of(value, 1, 4); }
  void operator()(AttemptReport::Kind& value) { one_of(value, 1, 3); }

  template <class T>
  void one_of(T& value, std::uint8_t first, std::uint8_t last) {
    const auto byte = bytes.number<std::uint8_t>();
    value = static_cast<T>(byte);
    if (byte < first || byte > last) is_sound = false;
  }
};

template <std::size_t kIndex = 0>
std::optional<ClosureEvent> decode_event(std::size_t kind, ByteReader& bytes) {
  if constexpr (kIndex == std::variant_size_v<ClosureEvent>) {
    return std::nullopt;
  } else if (kind != kIndex) {
    return decode_event<kIndex + 1>(kind, bytes);
  } else {
    std::variant_alternative_t<kIndex, ClosureEvent> event;
    bool is_sound = true;
    each_part(event, PartReader{bytes, is_sound});
    if (!is_sound || !bytes.is_complete()) return std::nullopt;
    return ClosureEvent(std::move(event));
  }
}

struct Record {
  ClosureEvent event;
  std::size_t end = 0;
};

/// Nothing, if no whole record begins there.
std::optional<Record> record_at(std::span<const std::byte> journal, std::size_t place) {
  if (journal.size() - place < kRecordHead) return std::nullopt;
  ByteReader head(journal.subspan(place, kRecordHead));
  const std::size_t length = head.number<std::uint32_t>();
  const auto checksum = head.number<std::uint32_t>();
  if (length == 0 || length > journal.size() - place - kRecordHead) return std::nullopt;
  const auto body = journal.subspan(place + kRecordHead, length);
  ByteReader bytes(body);
  const auto kind = bytes.number<std::uint8_t>();
  if (kind >= std::variant_size_v<ClosureEvent> || crc32c_of(body) != checksum) return std::nullopt;
  auto event = decode_event(kind, bytes);
  if (!event) return std::nullopt;
  return Record{std::move(*event), place + kRecordHead + length};
}

}  // namespace

bool is_of_all_servers(std::span<const std::byte> record) {
  const auto kind = std::to_integer<std::size_t>(record[kRecordHead]);
  return kind == ClosureEvent(events::TookOver()).index() ||
         kind == ClosureEvent(events::CutBegan()).index() ||
         kind == ClosureEvent(events::CutTaken()).index();
}

std::vector<std::byte> encode_record(const ClosureEvent& event) {
  ByteWriter body;
  body.number(static_cast<std::uint8_t>(event.index()));
  std::visit([&](const auto& each) { each_part(each, PartWriter{body}); }, event);
  ByteWriter record;
  record.number(static_cast<std::uint32_t>(body.bytes().size()));
  record.number(crc32c_of(body.bytes()));
  record.raw(body.bytes());
  return std::move(record.bytes());
}

std::size_t read_journal(std::span<const std::byte> journal,
                         const std::function<void(const ClosureEvent&)>& take) {
  std::size_t place = 0;
  while (place < journal.size()) {
    const auto record = record_at(journal, place);
    if (!record) break;
    take(record->event);
    place = record->end;
  }
  // Nothing stands behind what was being written when a process died.
  for (std::size_t later = place + 1; later < journal.size(); ++later) {
    if (!record_at(journal, later)) continue;
    fail(ErrorCode::kDataLoss, "coordinator's journal: record at byte ", place, " of ",
         journal.size(), " is damaged; expected a known event with its checksum before the whole ",
         "record at byte ", later, ", found other bytes; try a copy of the folder");
  }
  return place;
}

}  // namespace tutti::internal
