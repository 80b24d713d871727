// Orders as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/server_order.h"

#include <utility>

#include "parameter_server.pb.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/message.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestFolder = 4096, kLongestJobId = 64;
constexpr const char* kOrder = "an order of a coordinator";

void put(const orders::Meet& order, v1::ServerOrder& out) {
  out.mutable_meet()->set_run(order.run);
  out.mutable_meet()->set_sets_up(order.sets_up);
}
void put(const orders::KeepIn& order, v1::ServerOrder& out) {
  out.mutable_keep_in()->set_folder(order.folder);
  out.mutable_keep_in()->set_job_id(order.job_id);
}
void put(const orders::SaveCut& order, v1::ServerOrder& out) {
  v1::ServerOrder::SaveCut& save = *out.mutable_save_cut();
  save.set_cut(order.cut), save.set_term(order.term), save.set_keep(order.keep);
}
void put(const orders::Load& order, v1::ServerOrder& out) {
  out.mutable_load()->set_cut(order.cut);
  out.mutable_load()->set_term(order.term);
}
void put(const orders::Fence& order, v1::ServerOrder& out) {
  out.mutable_fence()->set_term(order.term);
}

[[noreturn]] void refuse(const Packet& packet, const char* what) {
  fail(ErrorCode::kDataLoss, "expected ", what, ", got a head of ", packet.head.size(),
       " bytes and a payload of ", packet.payload_bytes());
}

/// A message without tensors.
template <class Message>
void read(const Packet& packet, const char* what, Message& message) {
  try {
    parse(packet.head, message);
  } catch (const Error&) {
    refuse(packet, what);
  }
  if (packet.payload_bytes() != 0) refuse(packet, what);
}

}  // namespace

Packet encode(const ServerOrder& order) {
  InArena<v1::ServerOrder> message;
  message->set_life(order.life);
  std::visit([&](const auto& each) { put(each, *message); }, order.what);
  return {serialized(*message), {}};
}

ServerOrder decode_order(const Packet& packet) {
  InArena<v1::ServerOrder> message;
  const v1::ServerOrder& in = *message;
  read(packet, kOrder, *message);
  switch (in.what_case()) {
    case v1::ServerOrder::kMeet:
      return {in.life(), orders::Meet{in.meet().run(), in.meet().sets_up()}};
    case v1::ServerOrder::kKeepIn: {
      const v1::ServerOrder::KeepIn& keep = in.keep_in();
      if (keep.folder().size() > kLongestFolder || keep.job_id().size() > kLongestJobId) break;
      return {in.life(), orders::KeepIn{keep.folder(), keep.job_id()}};
    }
    case v1::ServerOrder::kSaveCut:
      return {in.life(),
              orders::SaveCut{in.save_cut().cut(), in.save_cut().term(), in.save_cut().keep()}};
    case v1::ServerOrder::kLoad:
      return {in.life(), orders::Load{in.load().cut(), in.load().term()}};
    case v1::ServerOrder::kFence:
      return {in.life(), orders::Fence{in.fence().term()}};
    case v1::ServerOrder::WHAT_NOT_SET:
      break;
  }
  refuse(packet, kOrder);
}

Packet encode_life(std::uint64_t life) {
  InArena<v1::ServerLife> message;
  message->set_life(life);
  return {serialized(*message), {}};
}

std::uint64_t decode_life(const Packet& packet) {
  InArena<v1::ServerLife> message;
  read(packet, "the life of a server", *message);
  if (message->life() == 0) refuse(packet, "the life of a server");
  return message->life();
}

}  // namespace tutti::internal
