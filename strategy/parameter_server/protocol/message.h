// Functions that write and read the protobuf messages of cluster/proto. Packets store the elements
// of tensors separately from these messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/arena.h>
#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calls.pb.h"
#include "strategy/parameter_server/protocol/tensor_payload.h"
#include "tutti/core/error.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

/// A protobuf message allocated in an arena. A short message fits into this object and needs no
/// further memory.
template <class Message>
class InArena {
 public:
  InArena() = default;
  InArena(const InArena&) = delete;
  InArena& operator=(const InArena&) = delete;
  Message& operator*() { return *message_; }
  Message* operator->() { return message_; }

 private:
  google::protobuf::ArenaOptions options() {
    google::protobuf::ArenaOptions options;
    options.initial_block = first_block_;
    options.initial_block_size = sizeof(first_block_);
    options.max_block_size = std::size_t{64} << 10;  // the first blocks are small
    return options;
  }
  alignas(std::max_align_t) char first_block_[1024];
  google::protobuf::Arena arena_{options()};
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

/// Returns the bytes of a message. Throws kResourceExhausted if there are more than `longest`.
std::vector<std::byte> serialized(const google::protobuf::MessageLite& message,
                                  std::size_t longest = kLongestHead);
/// Returns the packet that `put(message, payload)` fills.
template <class Message, class Put>
Packet packet_of(const Put& put, std::size_t longest = kLongestHead) {
  InArena<Message> message;
  PayloadWriter payload;
  put(*message, payload);
  return {serialized(*message, longest), payload.take()};
}

/// Parses `bytes` into `message`. Throws kDataLoss naming the message's type if the bytes cannot be
/// parsed.
void parse(std::span<const std::byte> bytes, google::protobuf::MessageLite& message);
/// Returns the result of `get(message, payload)` for a packet. Throws kDataLoss if `get` does not
/// read the whole payload.
template <class Message, class Get>
auto read_packet(const Packet& packet, const Get& get, InPlace in_place = InPlace::kLarge) {
  InArena<Message> message;
  parse(packet.head, *message);
  PayloadReader payload(packet, in_place);
  auto result = get(*message, payload);
  payload.finish();
  return result;
}

/// Write and read the type and shape of a tensor. spec_of() throws kDataLoss for an unknown type or
/// an invalid shape.
void put_head(const TensorSpec& spec, v1::TensorHead& out);
TensorSpec spec_of(const v1::TensorHead& in);
/// Writes a tensor: its type and shape to `out`, its elements to `payload`. Throws kInvalidArgument
/// if the tensor is undefined.
void put_tensor(const Tensor& tensor, PayloadWriter& payload, v1::TensorHead& out);
/// Reads a tensor. Throws the same errors as PayloadReader::take().
Tensor get_tensor(const v1::TensorHead& in, PayloadReader& payload);

/// Returns `number` as a value of Enum. Throws kDataLoss if it is outside [first, last].
template <class Enum>
Enum checked_enum(std::uint32_t number, Enum first, Enum last) {
  if (number < static_cast<std::uint32_t>(first) || number > static_cast<std::uint32_t>(last)) {
    fail(ErrorCode::kDataLoss, "message: ", number, " is not a known value; expected ",
         static_cast<std::uint32_t>(first), " to ", static_cast<std::uint32_t>(last));
  }
  return static_cast<Enum>(number);
}

}  // namespace tutti::internal
