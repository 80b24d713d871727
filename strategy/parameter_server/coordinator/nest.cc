// Nests as bytes: a kind, then its parts. Every length is checked against what is there.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

enum class Kind : std::uint8_t { kNothing = 1, kInHead, kInPayload, kText, kHandle, kList, kMap };

/// Tensors up to here travel in the head: a piece of payload of their own costs more.
constexpr std::size_t kSmall = 256;

[[noreturn]] void fail_bytes(const std::string& what) {
  fail(ErrorCode::kDataLoss, "nest: ", what, "; expected what encode_nest() writes");
}

void require_distinct(const Nest::Map& map) {
  std::set<std::string_view> names;
  for (const Nest::Member& member : map) {
    if (!names.insert(member.first).second) {
      fail(ErrorCode::kInvalidArgument, "nest: the name '", member.first,
           "' stands twice in a map; expected each name once");
    }
  }
}

class Encoder {
 public:
  explicit Encoder(Packet& packet) : packet_(packet) {}

  void write(const Nest& nest, int depth) {
    if (depth > Nest::kDeepest) {
      fail(ErrorCode::kInvalidArgument, "nest: deeper than ", Nest::kDeepest, " lists and maps");
    }
    if (const Tensor* tensor = nest.tensor()) return write(*tensor);
    if (const std::string* text = nest.text()) return kind(Kind::kText), bytes_.text(*text);
    if (const PerWorkerHandle* handle = nest.handle()) {
      kind(Kind::kHandle), bytes_.number(handle->id), bytes_.number(handle->instance);
      bytes_.text(handle->type);
    } else if (const Nest::List* list = nest.list()) {
      kind(Kind::kList), bytes_.number(static_cast<std::uint32_t>(list->size()));
      for (const Nest& each : *list) write(each, depth + 1);
    } else if (const Nest::Map* map = nest.map()) {
      kind(Kind::kMap), bytes_.number(static_cast<std::uint32_t>(map->size()));
      for (const auto& [name, each] : *map) bytes_.text(name), write(each, depth + 1);
    } else {
      kind(Kind::kNothing);
    }
  }
  void finish() {
    auto& head = packet_.head;
    if (head.size() + bytes_.bytes().size() > kLongestHead) {
      fail(ErrorCode::kResourceExhausted, "nest: ", bytes_.bytes().size(),
           " bytes of structure and texts; expected at most ", kLongestHead - head.size(),
           "; try tensors for large data");
    }
    head.insert(head.end(), bytes_.bytes().begin(), bytes_.bytes().end());
  }

 private:
  void kind(Kind kind) { bytes_.number(static_cast<std::uint8_t>(kind)); }
  void write(const Tensor& anywhere) {
    const Tensor tensor = anywhere.to(Device{});
    const bool is_small = tensor.num_bytes() <= kSmall;
    kind(is_small ? Kind::kInHead : Kind::kInPayload);
    bytes_.number(static_cast<std::uint8_t>(tensor.dtype()));
    bytes_.number(static_cast<std::uint8_t>(tensor.rank()));
    for (const std::int64_t dim : tensor.shape()) bytes_.number(static_cast<std::uint64_t>(dim));
    if (is_small) {
      bytes_.raw(tensor.bytes());
    } else {
      packet_.payload.push_back({tensor.bytes(), std::make_shared<Tensor>(tensor)});
    }
  }

  Packet& packet_;
  internal::ByteWriter bytes_;
};

class Decoder {
 public:
  Decoder(const Packet& packet, std::size_t place, std::size_t payload_place)
      : packet_(packet),
        bytes_(std::span(packet.head).subspan(std::min(place, packet.head.size()))),
        payload_place_(payload_place),
        payload_bytes_(payload_size(packet)) {}

  Nest read(int depth) {
    if (depth > Nest::kDeepest) fail_bytes("too deep");
    const auto kind = static_cast<Kind>(bytes_.number<std::uint8_t>());
    switch (kind) {
      case Kind::kNothing:
        return Nest();
      case Kind::kInHead:
      case Kind::kInPayload:
        return Nest(read_tensor(kind == Kind::kInHead));
      case Kind::kText:
        return Nest(checked(bytes_.text(kLongestHead)));
      case Kind::kHandle: {
        const auto id = bytes_.number<std::uint64_t>();
        const auto instance = bytes_.number<std::uint64_t>();
        return Nest(PerWorkerHandle{id, instance, checked(bytes_.text(kLongestHead)), {}});
      }
      case Kind::kList: {
        Nest::List list;
        for (std::uint32_t n = size(); n > 0; --n) list.push_back(read(depth + 1));
        return Nest(std::move(list));
      }
      case Kind::kMap:
        return read_map(depth);
    }
    fail_bytes(concat("no such kind: ", static_cast<int>(kind)));
  }

  std::size_t num_left() const { return bytes_.num_left(); }
  std::size_t payload_place() const { return payload_place_; }

 private:
  static std::size_t payload_size(const Packet& packet) {
    std::size_t size = 0;
    for (const SharedBytes& piece : packet.payload) size += piece.bytes.size();
    return size;
  }
  /// Every element takes a byte or more: a number beyond what is left is a lie.
  std::uint32_t size() {
    const auto size = bytes_.number<std::uint32_t>();
    if (bytes_.failed() || size > bytes_.num_left()) fail_bytes("a list longer than the message");
    return size;
  }
  std::string checked(std::string text) const {
    if (bytes_.failed()) fail_bytes("the message ends in a text");
    return text;
  }
  Nest read_map(int depth) {
    Nest::Map map;
    for (std::uint32_t n = size(); n > 0; --n) {
      std::string name = checked(bytes_.text(kLongestHead));
      map.emplace_back(std::move(name), read(depth + 1));
    }
    try {
      return Nest(std::move(map));
    } catch (const Error& error) {
      fail_bytes(error.message());
    }
  }
  Tensor read_tensor(bool is_in_head) {
    const auto dtype = bytes_.number<std::uint8_t>();
    if (std::ranges::find(kAllDTypes, static_cast<DType>(dtype)) == std::end(kAllDTypes)) {
      fail_bytes(concat("no such dtype: ", static_cast<int>(dtype)));
    }
    const auto rank = bytes_.number<std::uint8_t>();
    if (rank > Shape::kMaxRank) fail_bytes(concat("a tensor of rank ", static_cast<int>(rank)));
    const std::size_t left = is_in_head ? kSmall : payload_bytes_ - payload_place_;
    std::size_t num_bytes = size_of(static_cast<DType>(dtype));
    std::vector<std::int64_t> dims;
    bool is_empty = false;
    for (int axis = 0; axis < rank; ++axis) {
      const auto dim = bytes_.number<std::uint64_t>();
      if (dim > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()) * 1024) {
        fail_bytes(concat("a dimension of ", dim));
      }
      dims.push_back(static_cast<std::int64_t>(dim));
      is_empty = is_empty || dim == 0;
      if (dim != 0 && num_bytes > left / dim)
        num_bytes = left + 1;  // stays above, never overflows
      else if (dim != 0)
        num_bytes *= dim;
    }
    if (bytes_.failed()) fail_bytes("the message ends in a tensor");
    if (is_empty) num_bytes = 0;
    if (num_bytes > left) fail_bytes("a tensor larger than what came with it");
    if (is_in_head != (num_bytes <= kSmall)) fail_bytes("a tensor in the wrong place");
    return Tensor::from_bytes(Shape(dims), static_cast<DType>(dtype),
                              is_in_head ? head_bytes(num_bytes) : payload(num_bytes).bytes);
  }
  std::span<const std::byte> head_bytes(std::size_t count) {
    const auto bytes = bytes_.raw(count);
    if (bytes_.failed()) fail_bytes("the message ends in a tensor");
    return bytes;
  }
  /// Of one piece, or of a copy that lives until the next call.
  SharedBytes payload(std::size_t count) {
    SharedBytes range = payload_range(packet_, payload_place_, count);
    payload_place_ += count;
    last_ = range;
    return range;
  }

  const Packet& packet_;
  internal::ByteReader bytes_;
  std::size_t payload_place_;
  std::size_t payload_bytes_;
  SharedBytes last_;
};

void describe(const Nest& nest, std::string& text) {
  if (const Tensor* tensor = nest.tensor()) {
    text += concat(tensor->dtype(), " ", tensor->shape());
  } else if (nest.text() != nullptr) {
    text += "text";
  } else if (const PerWorkerHandle* handle = nest.handle()) {
    text += concat("per-worker ", handle->type);
  } else if (const Nest::List* list = nest.list()) {
    text += "(";
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i > 0) text += ", ";
      describe((*list)[i], text);
    }
    text += ")";
  } else if (const Nest::Map* map = nest.map()) {
    text += "{";
    for (std::size_t i = 0; i < map->size(); ++i) {
      text += concat(i > 0 ? ", " : "", (*map)[i].first, ": ");
      describe((*map)[i].second, text);
    }
    text += "}";
  } else {
    text += "nothing";
  }
}

}  // namespace

Nest::Nest(Tensor tensor) : value_(std::move(tensor)) {
  if (!std::get<Tensor>(value_).defined()) {
    fail(ErrorCode::kInvalidArgument, "nest: an undefined tensor; expected one with a value");
  }
}

Nest::Nest(Map map) {
  require_distinct(map);
  value_ = std::move(map);
}

const Nest* Nest::find(std::string_view name) const {
  const Map* members = map();
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, name, &Member::first);
  return found == members->end() ? nullptr : &found->second;
}

std::string Nest::structure() const {
  std::string text;
  describe(*this, text);
  return text;
}

namespace internal {

void encode_nest(const Nest& nest, Packet& packet) {
  Encoder encoder(packet);
  encoder.write(nest, 0);
  encoder.finish();
}

Nest decode_nest(const Packet& packet, std::size_t& place, std::size_t& payload_place) {
  std::size_t payload_bytes = 0;
  for (const SharedBytes& piece : packet.payload) payload_bytes += piece.bytes.size();
  if (place > packet.head.size() || payload_place > payload_bytes) {
    fail_bytes("it begins behind the end");
  }
  Decoder decoder(packet, place, payload_place);
  Nest nest = decoder.read(0);
  place = packet.head.size() - decoder.num_left();
  payload_place = decoder.payload_place();
  return nest;
}

}  // namespace internal
}  // namespace tutti
