// Orders as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_order.h"

#include <optional>

#include "parameter_server.pb.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestFolder = 4096, kLongestJobId = 64;

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

/// Nothing: it is no order.
std::optional<ServerOrder> order_in(const v1::ServerOrder& in) {
  switch (in.what_case()) {
    case v1::ServerOrder::kMeet:
      return ServerOrder{in.life(), orders::Meet{in.meet().run(), in.meet().sets_up()}};
    case v1::ServerOrder::kKeepIn: {
      const v1::ServerOrder::KeepIn& keep = in.keep_in();
      if (keep.folder().size() > kLongestFolder || keep.job_id().size() > kLongestJobId) break;
      return ServerOrder{in.life(), orders::KeepIn{keep.folder(), keep.job_id()}};
    }
    case v1::ServerOrder::kSaveCut: {
      const v1::ServerOrder::SaveCut& save = in.save_cut();
      return ServerOrder{in.life(), orders::SaveCut{save.cut(), save.term(), save.keep()}};
    }
    case v1::ServerOrder::kLoad:
      return ServerOrder{in.life(), orders::Load{in.load().cut(), in.load().term()}};
    case v1::ServerOrder::kFence:
      return ServerOrder{in.life(), orders::Fence{in.fence().term()}};
    case v1::ServerOrder::WHAT_NOT_SET:
      break;
  }
  return std::nullopt;
}

/// What `get` makes of a message without tensors.
template <class Message, class Get>
auto read(const Packet& packet, const char* what, const Get& get) {
  InArena<Message> message;
  try {
    parse(packet.head, *message);
    if (const auto value = get(*message); value && packet.payload_bytes() == 0) return *value;
  } catch (const Error&) {  // said below
  }
  fail(ErrorCode::kDataLoss, "expected ", what, ", got a head of ", packet.head.size(),
       " bytes and a payload of ", packet.payload_bytes());
}

}  // namespace

Packet encode(const ServerOrder& order) {
  InArena<v1::ServerOrder> message;
  message->set_life(order.life);
  std::visit([&](const auto& each) { put(each, *message); }, order.what);
  return {serialized(*message), {}};
}

ServerOrder decode_order(const Packet& packet) {
  return read<v1::ServerOrder>(packet, "an order of a coordinator", order_in);
}

Packet encode_life(std::uint64_t life) {
  InArena<v1::ServerLife> message;
  message->set_life(life);
  return {serialized(*message), {}};
}

std::uint64_t decode_life(const Packet& packet) {
  return read<v1::ServerLife>(packet, "the life of a server", [](const v1::ServerLife& in) {
    return in.life() == 0 ? std::nullopt : std::optional<std::uint64_t>(in.life());
  });
}

}  // namespace tutti::internal
