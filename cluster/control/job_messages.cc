// Converts members, verdicts and progress to messages and back.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/job_messages.h"

#include <algorithm>

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestName = 255;
constexpr std::size_t kMostGroups = 64;

/// Returns the length of the UTF-8 character at the start; 0 if it is invalid.
std::size_t character_at(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const std::size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : byte(0) >= 0xc2 ? 2 : 0;
  if (size == 0 || byte(0) > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned first = byte(0), second = byte(1);  // rejects overlong forms and surrogates
  const bool is_none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return is_none ? 0 : size;
}

std::string name_text(std::string_view text) { return proto_text(text, kLongestName); }

}  // namespace

std::string proto_text(std::string_view text, std::size_t longest) {
  std::string result;
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    if (result.size() + std::max<std::size_t>(size, 1) > longest) break;
    if (size == 0) result += '?';
    result += text.substr(0, size);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

v1::Member to_proto(const Member& member) {
  v1::Member proto;
  proto.set_job(name_text(member.task.job));
  proto.set_index(static_cast<std::uint32_t>(member.task.index));
  proto.set_address(name_text(member.task.address));
  proto.set_incarnation(member.incarnation);
  proto.set_host(name_text(member.host));
  proto.set_pid(member.pid);
  proto.set_is_here(member.is_here);
  return proto;
}

Member from_proto(const v1::Member& proto) {
  Member member;
  member.task = {name_text(proto.job()), static_cast<int>(proto.index()),
                 name_text(proto.address())};
  member.incarnation = proto.incarnation();
  member.host = name_text(proto.host());
  member.pid = proto.pid();
  member.is_here = proto.is_here();
  return member;
}

v1::Verdict to_proto(const Verdict& verdict) {
  v1::Verdict proto;
  proto.set_number(verdict.number);
  proto.set_kind(static_cast<v1::Verdict::Kind>(verdict.kind));
  *proto.mutable_member() = to_proto(verdict.who);
  proto.set_is_fatal(verdict.is_fatal);
  proto.set_code(static_cast<std::uint32_t>(verdict.code));
  proto.set_message(proto_text(verdict.message));
  return proto;
}

Verdict from_proto(const v1::Verdict& proto) {
  Verdict verdict;
  verdict.number = proto.number();
  verdict.kind = static_cast<VerdictKind>(proto.kind());
  verdict.who = from_proto(proto.member());
  verdict.is_fatal = proto.is_fatal();
  verdict.code = static_cast<ErrorCode>(proto.code());
  verdict.message = proto.message();
  return verdict;
}

v1::Progress to_proto(const MemberProgress& progress) {
  v1::Progress proto;
  proto.set_step(progress.step);
  proto.set_phase(name_text(progress.phase));
  for (std::size_t i = 0; i < std::min(progress.groups.size(), kMostGroups); ++i) {
    const GroupProgress& group = progress.groups[i];
    v1::GroupProgress& added = *proto.add_groups();
    added.set_group(name_text(group.group));
    added.set_entered(group.entered);
    added.set_finished(group.finished);
    added.set_call(name_text(group.call));
    added.set_since_ns(group.since.count());
  }
  return proto;
}

MemberProgress from_proto(const v1::Progress& proto) {
  MemberProgress progress{proto.step(), name_text(proto.phase()), {}};
  const int count = std::min<int>(proto.groups_size(), kMostGroups);
  for (int i = 0; i < count; ++i) {
    const v1::GroupProgress& group = proto.groups(i);
    progress.groups.push_back({name_text(group.group()), group.entered(), group.finished(),
                               name_text(group.call()), Duration(group.since_ns())});
  }
  return progress;
}

JoiningProcess from_proto(const v1::JoinRequest& request) {
  return {from_proto(request.member()), request.start_time(), name_text(request.machine()),
          name_text(request.process())};
}

}  // namespace tutti::internal
