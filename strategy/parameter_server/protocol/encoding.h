// Batches and their answers as packets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// How the head is written; its first byte tells. The payload (tensor_payload.h) is the same.
/// kBytes: little-endian numbers in the order of operation.h. kProtobuf: protobuf/batch.proto, in
/// builds with protobuf.
enum class HeadFormat : std::uint8_t { kBytes = 1, kProtobuf = 2 };
/// kProtobuf where the build has it.
HeadFormat default_head_format();

/// Tensors of the packet share the memory of those in the batch. Throws kInvalidArgument for a
/// batch whose head would be longer than kLongestHead (send it in two) or that has undefined
/// tensors.
Packet encode(const OperationBatch& batch, HeadFormat format = default_head_format());
/// Throws kDataLoss for a packet that encode() did not write: what stands in the head is compared
/// with the payload before memory is taken for it. kUnimplemented for a head in a format that this
/// build does not have. Tensors stay in the memory that the payload was received in: whoever keeps
/// one for longer than the batch copies it (VariableComponent does).
OperationBatch decode_batch(const Packet& packet);

Packet encode(const std::vector<OperationAnswer>& answers,
              HeadFormat format = default_head_format());
std::vector<OperationAnswer> decode_answers(const Packet& packet);

/// Of a packet that decode_batch() or decode_answers() take; kBytes for others.
HeadFormat head_format(const Packet& packet);

inline constexpr std::size_t kMostOperations = std::size_t{1} << 16;
inline constexpr std::size_t kLongestVariableName = 4096;
inline constexpr std::size_t kLongestRule = std::size_t{1} << 16;
inline constexpr std::size_t kMostSlots = 64;

}  // namespace tutti::internal
