// Batches and their answers as packets: the first byte, the head of either form, the payload.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/encoding.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/head_codec.h"

namespace tutti::internal {
namespace {

// The first byte of a head: the format, and what it is.
constexpr std::uint8_t kBatch = 0x10, kAnswers = 0x20;

Packet packet_of(std::uint8_t kind, HeadFormat format, std::vector<std::byte> head,
                 PayloadWriter& payload) {
  head.insert(head.begin(), static_cast<std::byte>(kind | static_cast<std::uint8_t>(format)));
  if (head.size() > kLongestHead) {
    fail(ErrorCode::kInvalidArgument, "a batch of operations: its head has ", head.size(),
         " bytes; expected at most ", kLongestHead, "; try sending it in two");
  }
  return {std::move(head), payload.take()};
}

/// The head behind its first byte.
std::span<const std::byte> head_of(const Packet& packet, std::uint8_t kind, const char* what) {
  const std::span<const std::byte> head = packet.head;
  const auto first = head.empty() ? 0 : std::to_integer<std::uint8_t>(head.front());
  const auto format = static_cast<HeadFormat>(first & 0x0F);
  const bool is_known = format == HeadFormat::kBytes || format == HeadFormat::kProtobuf;
  if ((first & 0xF0) == kind && is_known) return head.subspan(1);
  fail(ErrorCode::kDataLoss, "expected ", what, ", got a head of ", head.size(),
       " bytes that begins with ", static_cast<int>(first));
}

void check_limits(const OperationBatch& batch) {
  const auto refuse = [](const auto&... parts) {
    fail(ErrorCode::kInvalidArgument, "a batch of operations: ", parts...);
  };
  if (batch.operations.size() > kMostOperations) {
    refuse("expected at most ", kMostOperations, " operations, got ", batch.operations.size());
  }
  for (const Operation& operation : batch.operations) {
    if (const auto* create = std::get_if<CreateShard>(&operation)) {
      if (create->spec.variable.size() > kLongestVariableName) {
        refuse("a variable's name has ", create->spec.variable.size(), " characters; expected ",
               kLongestVariableName, " at most");
      }
    } else if (const auto* update = std::get_if<UpdateShard>(&operation)) {
      if (update->rule.size() > kLongestRule || update->slots.size() > kMostSlots) {
        refuse("the description of a rule has ", update->rule.size(), " characters and ",
               update->slots.size(), " slots; expected at most ", kLongestRule, " and ",
               kMostSlots);
      }
    }
  }
}

}  // namespace

HeadFormat default_head_format() {
  return has_protobuf_heads() ? HeadFormat::kProtobuf : HeadFormat::kBytes;
}

HeadFormat head_format(const Packet& packet) {
  const bool is_protobuf =
      !packet.head.empty() && (std::to_integer<std::uint8_t>(packet.head.front()) & 0x0F) ==
                                  static_cast<std::uint8_t>(HeadFormat::kProtobuf);
  return is_protobuf ? HeadFormat::kProtobuf : HeadFormat::kBytes;
}

Packet encode(const OperationBatch& batch, HeadFormat format) {
  check_limits(batch);
  PayloadWriter payload;
  auto head = format == HeadFormat::kBytes ? write_bytes_head(batch, payload)
                                           : write_protobuf_head(batch, payload);
  return packet_of(kBatch, format, std::move(head), payload);
}

Packet encode(const std::vector<OperationAnswer>& answers, HeadFormat format) {
  PayloadWriter payload;
  auto head = format == HeadFormat::kBytes ? write_bytes_head(answers, payload)
                                           : write_protobuf_head(answers, payload);
  return packet_of(kAnswers, format, std::move(head), payload);
}

OperationBatch decode_batch(const Packet& packet) {
  const auto head = head_of(packet, kBatch, "a batch of operations");
  PayloadReader payload(packet, InPlace::kAll);
  OperationBatch batch = head_format(packet) == HeadFormat::kBytes
                             ? read_bytes_batch(head, payload)
                             : read_protobuf_batch(head, payload);
  payload.finish();
  return batch;
}

std::vector<OperationAnswer> decode_answers(const Packet& packet) {
  const auto head = head_of(packet, kAnswers, "answers of a parameter server");
  PayloadReader payload(packet);
  auto answers = head_format(packet) == HeadFormat::kBytes ? read_bytes_answers(head, payload)
                                                           : read_protobuf_answers(head, payload);
  payload.finish();
  return answers;
}

}  // namespace tutti::internal
