// Messages as bytes: a kind, an id, and the parts in the order of their declaration.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/message.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"

namespace tutti::internal {
namespace {

bool is_error_code(std::uint8_t code) { return code <= 15; }

class Writer {
 public:
  void put(bool value) { bytes_.number(static_cast<std::uint8_t>(value)); }
  void put(std::uint64_t value) { bytes_.number(value); }
  void put(int value) { bytes_.number(static_cast<std::uint32_t>(value)); }
  void put(std::int64_t value) { bytes_.number(static_cast<std::uint64_t>(value)); }
  void put(ErrorCode code) { bytes_.number(static_cast<std::uint8_t>(code)); }
  void put(VerdictKind kind) { bytes_.number(static_cast<std::uint8_t>(kind)); }
  void put(StoreRequest::Action action) { bytes_.number(static_cast<std::uint8_t>(action)); }
  void put(Duration duration) { put(static_cast<std::int64_t>(duration.count())); }
  void put(std::string_view text, std::size_t longest = kLongestText) {
    bytes_.text(text.substr(0, longest));
  }
  void put_optional(const std::optional<std::string>& value) {
    put(value.has_value());
    if (value) put(*value, kLongestValue);
  }
  void put(const MemberTask& task) {
    put(task.job, kLongestName), put(task.index), put(task.address, kLongestName);
  }
  void put(const Member& m) {
    put(m.task), put(m.incarnation), put(m.host, kLongestName), put(m.pid), put(m.is_here);
  }
  void put(const GroupProgress& g) {
    put(g.group, kLongestName), put(g.entered), put(g.finished), put(g.call, kLongestName);
    put(g.since);
  }
  void put(const MemberProgress& p) {
    const std::size_t n = std::min(p.groups.size(), kMostGroups);
    put(p.step), put(p.phase, kLongestName), put(static_cast<int>(n));
    for (std::size_t i = 0; i < n; ++i) put(p.groups[i]);
  }
  void put(const Verdict& v) {
    put(v.number), put(v.kind), put(v.who), put(v.is_fatal), put(v.code), put(v.message);
  }

  void put(const JoinRequest& m) {
    put(m.who), put(m.start_time), put(m.machine, kLongestName), put(m.process, kLongestName);
    put(m.num_verdicts);
  }
  void put(const StoreRequest& m) {
    put(m.action), put(m.key, kLongestKey), put(m.value, kLongestValue), put_optional(m.expected);
  }
  void put(const MembersRequest& m) { put(m.until_all_are_here); }
  void put(const Heartbeat& m) { put(m.progress); }
  void put(const FailureReport& m) { put(m.code), put(m.text); }
  void put(const StopRequest& m) { put(m.reason, kLongestName); }
  void put(const StopAnswer& m) { put(m.round), put(m.current_step), put(m.accepts); }
  void put(const GoodBye&) {}
  void put(const JoinReply& m) {
    put(m.code), put(m.text), put(m.host), put(m.host_start_time);
    put(m.host_machine, kLongestName), put(m.heartbeat_ms), put(m.silent_ms);
    put(m.unreachable_ms);
  }
  void put(const StoreReply& m) { put(m.code), put(m.text), put_optional(m.value), put(m.changed); }
  void put(const MembersReply& m) {
    const std::size_t n = std::min(m.members.size(), kMostMembers);
    put(static_cast<int>(n));
    for (std::size_t i = 0; i < n; ++i) put(m.members[i]);
  }
  void put(const HeartbeatReply&) {}
  void put(const VerdictNews& m) { put(m.verdict); }
  void put(const StopProposal& m) {
    put(m.round), put(m.step), put(m.is_final), put(m.reason, kLongestName);
  }
  void put(const ServerLeaves&) {}

  std::vector<std::byte>& bytes() { return bytes_.bytes(); }

 private:
  ByteWriter bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void get(bool& value) {
    const auto byte = bytes_.number<std::uint8_t>();
    value = byte == 1;
    if (byte > 1) sound_ = false;
  }
  void get(std::uint64_t& value) { value = bytes_.number<std::uint64_t>(); }
  void get(int& value) { value = static_cast<int>(bytes_.number<std::uint32_t>()); }
  void get(std::int64_t& value) {
    value = static_cast<std::int64_t>(bytes_.number<std::uint64_t>());
  }
  void get(ErrorCode& code) {
    const auto byte = bytes_.number<std::uint8_t>();
    code = static_cast<ErrorCode>(byte);
    if (!is_error_code(byte)) sound_ = false;
  }
  void get(VerdictKind& kind) { get_enum(kind, 1, 6); }
  void get(StoreRequest::Action& action) { get_enum(action, 1, 6); }
  void get(Duration& duration) {
    std::int64_t count = 0;
    get(count);
    duration = Duration(count);
  }
  void get(std::string& text, std::size_t longest = kLongestText) { text = bytes_.text(longest); }
  void get(std::optional<std::string>& value) {
    bool has_value = false;
    get(has_value);
    if (has_value) value = bytes_.text(kLongestValue);
  }
  void get(MemberTask& task) {
    get(task.job, kLongestName), get(task.index), get(task.address, kLongestName);
  }
  void get(Member& m) {
    get(m.task), get(m.incarnation), get(m.host, kLongestName), get(m.pid), get(m.is_here);
  }
  void get(GroupProgress& g) {
    get(g.group, kLongestName), get(g.entered), get(g.finished), get(g.call, kLongestName);
    get(g.since);
  }
  void get(MemberProgress& p) {
    get(p.step), get(p.phase, kLongestName);
    get_list(p.groups, kMostGroups);
  }
  void get(Verdict& v) {
    get(v.number), get(v.kind), get(v.who), get(v.is_fatal), get(v.code), get(v.message);
  }

  void get(JoinRequest& m) {
    get(m.who), get(m.start_time), get(m.machine, kLongestName), get(m.process, kLongestName);
    get(m.num_verdicts);
  }
  void get(StoreRequest& m) {
    get(m.action), get(m.key, kLongestKey), get(m.value, kLongestValue), get(m.expected);
  }
  void get(MembersRequest& m) { get(m.until_all_are_here); }
  void get(Heartbeat& m) { get(m.progress); }
  void get(FailureReport& m) { get(m.code), get(m.text); }
  void get(StopRequest& m) { get(m.reason, kLongestName); }
  void get(StopAnswer& m) { get(m.round), get(m.current_step), get(m.accepts); }
  void get(GoodBye&) {}
  void get(JoinReply& m) {
    get(m.code), get(m.text), get(m.host), get(m.host_start_time);
    get(m.host_machine, kLongestName), get(m.heartbeat_ms), get(m.silent_ms);
    get(m.unreachable_ms);
  }
  void get(StoreReply& m) { get(m.code), get(m.text), get(m.value), get(m.changed); }
  void get(MembersReply& m) { get_list(m.members, kMostMembers); }
  void get(HeartbeatReply&) {}
  void get(VerdictNews& m) { get(m.verdict); }
  void get(StopProposal& m) {
    get(m.round), get(m.step), get(m.is_final), get(m.reason, kLongestName);
  }
  void get(ServerLeaves&) {}

  std::uint8_t kind() { return bytes_.number<std::uint8_t>(); }
  bool is_sound() const { return sound_ && bytes_.is_complete(); }

 private:
  template <class T>
  void get_enum(T& value, std::uint8_t first, std::uint8_t last) {
    const auto byte = bytes_.number<std::uint8_t>();
    value = static_cast<T>(byte);
    if (byte < first || byte > last) sound_ = false;
  }
  template <class T>
  void get_list(std::vector<T>& list, std::size_t most) {
    const std::size_t n = bytes_.number<std::uint32_t>();
    if (n > most) sound_ = false;
    // Grows with what is there: the number alone reserves nothing.
    for (std::size_t i = 0; i < n && sound_ && !bytes_.failed(); ++i) get(list.emplace_back());
  }

  ByteReader bytes_;
  bool sound_ = true;
};

/// Reads the alternative of number `kind` into `body`; false: there is none.
template <std::size_t kIndex = 0>
bool read_body(Reader& reader, std::size_t kind, decltype(Message::body)& body) {
  if constexpr (kIndex < std::variant_size_v<decltype(Message::body)>) {
    if (kind == kIndex) {
      reader.get(body.emplace<kIndex>());
      return true;
    }
    return read_body<kIndex + 1>(reader, kind, body);
  } else {
    return false;
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Writer writer;
  writer.bytes().push_back(static_cast<std::byte>(message.body.index()));
  writer.put(message.id);
  std::visit([&writer](const auto& body) { writer.put(body); }, message.body);
  return std::move(writer.bytes());
}

std::optional<Message> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kLongestMessage) return std::nullopt;
  Reader reader(bytes);
  Message message;
  const std::size_t kind = reader.kind();
  reader.get(message.id);
  if (!read_body(reader, kind, message.body) || !reader.is_sound()) return std::nullopt;
  return message;
}

}  // namespace tutti::internal
