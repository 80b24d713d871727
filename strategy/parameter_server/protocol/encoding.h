// Batches and their answers as packets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// A request to a server, or a part of its files. The head is a message OperationBatch
/// (cluster/proto/ parameter_server.proto), the payload (tensor_payload.h) shares the memory of
/// tensors in the batch. Throws kInvalidArgument for a batch beyond the limits below or with
/// undefined tensors, kResourceExhausted for a head that would be longer than kLongestHead (send it
/// in two); kUnimplemented, as all of these functions, in builds without gRPC.
Packet encode(const OperationBatch& batch);
/// Throws kDataLoss for a packet that encode() did not write: what stands in the head is compared
/// with the payload before memory is taken for it. Tensors stay in the memory that the payload was
/// received in: code that keeps one for longer than the batch copies it (VariableComponent does).
OperationBatch decode_batch(const Packet& packet);

Packet encode(const std::vector<OperationAnswer>& answers);
std::vector<OperationAnswer> decode_answers(const Packet& packet);

inline constexpr std::size_t kMostOperations = std::size_t{1} << 16;
inline constexpr std::size_t kLongestVariableName = 4096;
inline constexpr std::size_t kLongestRule = std::size_t{1} << 16;
inline constexpr std::size_t kMostSlots = 64;

}  // namespace tutti::internal
