// Orders as packets: what no batch begins with, the kind, the life, numbers and texts.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/server_order.h"

#include <type_traits>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr auto kOrder = std::byte{0x30};  // batches and their answers: 0x1., 0x2. (encoding.cc)
constexpr auto kLife = std::byte{0x40};
constexpr std::size_t kLongestFolder = 4096, kLongestJobId = 64;

class Writer {
 public:
  explicit Writer(ByteWriter& out) : out_(out) {}
  void operator()(std::uint64_t value) { out_.number(value); }
  void operator()(bool value) { out_.number(static_cast<std::uint8_t>(value ? 1 : 0)); }
  void operator()(const std::string& text, std::size_t) { out_.text(text); }

 private:
  ByteWriter& out_;
};

class Reader {
 public:
  explicit Reader(ByteReader& in) : in_(in) {}
  void operator()(std::uint64_t& value) { value = in_.number<std::uint64_t>(); }
  void operator()(bool& value) { value = in_.number<std::uint8_t>() != 0; }
  void operator()(std::string& text, std::size_t longest) { text = in_.text(longest); }

 private:
  ByteReader& in_;
};

/// Calls `part` with each part of an order, in order.
template <class Order, class Part>
void each_part(Order& order, Part part) {
  using Kind = std::remove_const_t<Order>;
  if constexpr (std::is_same_v<Kind, orders::Meet>) {
    part(order.run), part(order.sets_up);
  } else if constexpr (std::is_same_v<Kind, orders::KeepIn>) {
    part(order.folder, kLongestFolder), part(order.job_id, kLongestJobId);
  } else if constexpr (std::is_same_v<Kind, orders::SaveCut>) {
    part(order.cut), part(order.term), part(order.keep);
  } else if constexpr (std::is_same_v<Kind, orders::Load>) {
    part(order.cut), part(order.term);
  } else {
    static_assert(std::is_same_v<Kind, orders::Fence>);
    part(order.term);
  }
}

template <std::size_t I = 0>
bool take_kind(ServerOrder& order, std::size_t kind) {
  using What = decltype(order.what);
  if constexpr (I < std::variant_size_v<What>) {
    if (kind != I) return take_kind<I + 1>(order, kind);
    order.what.emplace<I>();
    return true;
  } else {
    return false;
  }
}

[[noreturn]] void refuse(const Packet& packet, const char* what) {
  fail(ErrorCode::kDataLoss, "expected ", what, ", got a head of ", packet.head.size(),
       " bytes and a payload of ", packet.payload_bytes());
}

}  // namespace

bool is_order(const Packet& packet) {
  return !packet.head.empty() && packet.head.front() == kOrder;
}

Packet encode(const ServerOrder& order) {
  ByteWriter out;
  out.raw({&kOrder, 1});
  out.number(static_cast<std::uint8_t>(order.what.index()));
  out.number(order.life);
  std::visit([&](const auto& each) { each_part(each, Writer(out)); }, order.what);
  return {std::move(out.bytes()), {}};
}

ServerOrder decode_order(const Packet& packet) {
  if (!is_order(packet)) refuse(packet, "an order of a coordinator");
  ByteReader in(std::span(packet.head).subspan(1));
  ServerOrder order;
  const bool is_known = take_kind(order, in.number<std::uint8_t>());
  order.life = in.number<std::uint64_t>();
  std::visit([&](auto& each) { each_part(each, Reader(in)); }, order.what);
  const bool is_whole = is_known && in.is_complete() && packet.payload_bytes() == 0;
  if (!is_whole || encode(order).head != packet.head) refuse(packet, "an order of a coordinator");
  return order;
}

Packet encode_life(std::uint64_t life) {
  ByteWriter out;
  out.raw({&kLife, 1});
  out.number(life);
  return {std::move(out.bytes()), {}};
}

std::uint64_t decode_life(const Packet& packet) {
  ByteReader in(packet.head);
  const auto kind = in.number<std::uint8_t>();
  const auto life = in.number<std::uint64_t>();
  const bool is_life = kind == std::to_integer<std::uint8_t>(kLife) && in.is_complete() &&
                       packet.payload_bytes() == 0 && life != 0;
  if (!is_life) refuse(packet, "the life of a server");
  return life;
}

}  // namespace tutti::internal
