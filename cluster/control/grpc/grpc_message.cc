// Between message.h and control.proto.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/grpc/grpc_message.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>

namespace tutti::internal {
namespace {

// Writing.

void put(const Member& m, control::Member& to) {
  to.set_job(m.task.job);
  to.set_index(static_cast<std::uint32_t>(m.task.index));
  to.set_address(m.task.address);
  to.set_incarnation(m.incarnation);
  to.set_host(m.host);
  to.set_pid(m.pid);
  to.set_is_here(m.is_here);
}

void put(const Verdict& v, control::Verdict& to) {
  to.set_number(v.number);
  to.set_kind(static_cast<std::uint32_t>(v.kind));
  put(v.who, *to.mutable_who());
  to.set_is_fatal(v.is_fatal);
  to.set_code(static_cast<std::uint32_t>(v.code));
  to.set_message(v.message.substr(0, kLongestText));
}

struct Put {
  control::ControlMessage& to;

  void operator()(const JoinRequest& m) const {
    auto& out = *to.mutable_join_request();
    put(m.who, *out.mutable_who());
    out.set_start_time(m.start_time);
    out.set_machine(m.machine);
    out.set_process(m.process);
    out.set_num_verdicts(m.num_verdicts);
  }
  void operator()(const StoreRequest& m) const {
    auto& out = *to.mutable_store_request();
    out.set_action(static_cast<std::uint32_t>(m.action));
    out.set_key(m.key);
    out.set_value(m.value);
    if (m.expected) out.set_expected(*m.expected);
  }
  void operator()(const MembersRequest& m) const {
    to.mutable_members_request()->set_until_all_are_here(m.until_all_are_here);
  }
  void operator()(const Heartbeat& m) const {
    auto& out = *to.mutable_heartbeat();
    out.set_step(m.progress.step);
    out.set_phase(m.progress.phase.substr(0, kLongestName));
    const std::size_t n = std::min(m.progress.groups.size(), kMostGroups);
    for (std::size_t i = 0; i < n; ++i) {
      const GroupProgress& group = m.progress.groups[i];
      auto& part = *out.add_groups();
      part.set_group(group.group.substr(0, kLongestName));
      part.set_entered(group.entered);
      part.set_finished(group.finished);
      part.set_call(group.call.substr(0, kLongestName));
      part.set_since_ns(group.since.count());
    }
  }
  void operator()(const FailureReport& m) const {
    to.mutable_failure_report()->set_code(static_cast<std::uint32_t>(m.code));
    to.mutable_failure_report()->set_text(m.text.substr(0, kLongestText));
  }
  void operator()(const StopRequest& m) const {
    to.mutable_stop_request()->set_reason(m.reason.substr(0, kLongestName));
  }
  void operator()(const StopAnswer& m) const {
    auto& out = *to.mutable_stop_answer();
    out.set_round(m.round);
    out.set_current_step(m.current_step);
    out.set_accepts(m.accepts);
  }
  void operator()(const GoodBye&) const { to.mutable_good_bye(); }
  void operator()(const JoinReply& m) const {
    auto& out = *to.mutable_join_reply();
    out.set_code(static_cast<std::uint32_t>(m.code));
    out.set_text(m.text.substr(0, kLongestText));
    put(m.host, *out.mutable_host());
    out.set_host_start_time(m.host_start_time);
    out.set_host_machine(m.host_machine);
    out.set_heartbeat_ms(m.heartbeat_ms);
    out.set_silent_ms(m.silent_ms);
    out.set_unreachable_ms(m.unreachable_ms);
  }
  void operator()(const StoreReply& m) const {
    auto& out = *to.mutable_store_reply();
    out.set_code(static_cast<std::uint32_t>(m.code));
    out.set_text(m.text.substr(0, kLongestText));
    if (m.value) out.set_value(*m.value);
    out.set_changed(m.changed);
  }
  void operator()(const MembersReply& m) const {
    for (const Member& member : m.members) put(member, *to.mutable_members_reply()->add_members());
    to.mutable_members_reply();
  }
  void operator()(const HeartbeatReply&) const { to.mutable_heartbeat_reply(); }
  void operator()(const VerdictNews& m) const {
    put(m.verdict, *to.mutable_verdict_news()->mutable_verdict());
  }
  void operator()(const StopProposal& m) const {
    auto& out = *to.mutable_stop_proposal();
    out.set_round(m.round);
    out.set_step(m.step);
    out.set_is_final(m.is_final);
    out.set_reason(m.reason.substr(0, kLongestName));
  }
  void operator()(const ServerLeaves&) const { to.mutable_server_leaves(); }
};

// Reading.

Member get(const control::Member& m) {
  return {{m.job(), static_cast<int>(m.index()), m.address()},
          m.incarnation(),
          m.host(),
          m.pid(),
          m.is_here()};
}

ErrorCode code_of(std::uint32_t code) { return static_cast<ErrorCode>(code); }

MemberProgress get(const control::Heartbeat& m) {
  MemberProgress progress{m.step(), m.phase(), {}};
  for (const auto& part : m.groups()) {
    progress.groups.push_back(
        {part.group(), part.entered(), part.finished(), part.call(), Duration(part.since_ns())});
  }
  return progress;
}

StoreRequest get(const control::StoreRequest& m) {
  StoreRequest request{static_cast<StoreRequest::Action>(m.action()), m.key(), m.value(), {}};
  if (m.has_expected()) request.expected = m.expected();
  return request;
}

JoinReply get(const control::JoinReply& m) {
  return {code_of(m.code()), m.text(),         get(m.host()), m.host_start_time(),
          m.host_machine(),  m.heartbeat_ms(), m.silent_ms(), m.unreachable_ms()};
}

StoreReply get(const control::StoreReply& m) {
  StoreReply reply{code_of(m.code()), m.text(), {}, m.changed()};
  if (m.has_value()) reply.value = m.value();
  return reply;
}

Verdict get(const control::Verdict& m) {
  return {m.number(),        static_cast<VerdictKind>(m.kind()),
          get(m.who()),      m.is_fatal(),
          code_of(m.code()), m.message()};
}

MembersReply get(const control::MembersReply& m) {
  MembersReply reply;
  for (const auto& member : m.members()) reply.members.push_back(get(member));
  return reply;
}

std::optional<decltype(Message::body)> body_of(const control::ControlMessage& m) {
  using Case = control::ControlMessage::BodyCase;
  switch (m.body_case()) {
    case Case::kJoinRequest: {
      const auto& join = m.join_request();
      return JoinRequest{get(join.who()), join.start_time(), join.machine(), join.process(),
                         join.num_verdicts()};
    }
    case Case::kStoreRequest:
      return get(m.store_request());
    case Case::kMembersRequest:
      return MembersRequest{m.members_request().until_all_are_here()};
    case Case::kHeartbeat:
      return Heartbeat{get(m.heartbeat())};
    case Case::kFailureReport:
      return FailureReport{code_of(m.failure_report().code()), m.failure_report().text()};
    case Case::kStopRequest:
      return StopRequest{m.stop_request().reason()};
    case Case::kStopAnswer:
      return StopAnswer{m.stop_answer().round(), m.stop_answer().current_step(),
                        m.stop_answer().accepts()};
    case Case::kGoodBye:
      return GoodBye{};
    case Case::kJoinReply:
      return get(m.join_reply());
    case Case::kStoreReply:
      return get(m.store_reply());
    case Case::kMembersReply:
      return get(m.members_reply());
    case Case::kHeartbeatReply:
      return HeartbeatReply{};
    case Case::kVerdictNews:
      return VerdictNews{get(m.verdict_news().verdict())};
    case Case::kStopProposal: {
      const auto& proposal = m.stop_proposal();
      return StopProposal{proposal.round(), proposal.step(), proposal.is_final(),
                          proposal.reason()};
    }
    case Case::kServerLeaves:
      return ServerLeaves{};
    case Case::BODY_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::string to_protobuf(const Message& message) {
  control::ControlMessage out;
  out.set_id(message.id);
  std::visit(Put{out}, message.body);
  return out.SerializeAsString();
}

std::optional<Message> from_protobuf(std::string_view bytes) {
  if (bytes.size() > kLongestMessage) return std::nullopt;
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  stream.SetRecursionLimit(8);
  control::ControlMessage parsed;
  if (!parsed.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) return std::nullopt;
  auto body = body_of(parsed);
  if (!body) return std::nullopt;
  // The other wire's reader knows the bounds of all parts: what it takes is in order.
  return decode_message(encode({parsed.id(), *std::move(body)}));
}

control::Envelope to_envelope(std::span<const std::byte> handshake) {
  control::Envelope envelope;
  envelope.set_handshake(handshake.data(), handshake.size());
  return envelope;
}

control::Envelope to_envelope(const Message& message, FrameSeals& seals) {
  control::Envelope envelope;
  *envelope.mutable_sealed_message() = to_protobuf(message);
  const SealBytes seal = seals.next(bytes_of(envelope.sealed_message()));
  envelope.set_seal(seal.data(), seal.size());
  return envelope;
}

std::optional<Message> open_envelope(const control::Envelope& envelope, FrameSeals& seals) {
  const std::string& body = envelope.sealed_message();
  if (!seals.is_next(bytes_of(body), bytes_of(envelope.seal()))) return std::nullopt;
  return from_protobuf(body);
}

}  // namespace tutti::internal
