// The two forms of a head, behind encoding.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/protocol/tensor_payload.h"

namespace tutti::internal {

/// Heads without their first byte. Tensors go into and come from the payload in the order in which
/// they stand in operation.h. Reading throws kDataLoss.
std::vector<std::byte> write_bytes_head(const OperationBatch& batch, PayloadWriter& payload);
std::vector<std::byte> write_bytes_head(const std::vector<OperationAnswer>& answers,
                                        PayloadWriter& payload);
OperationBatch read_bytes_batch(std::span<const std::byte> head, PayloadReader& payload);
std::vector<OperationAnswer> read_bytes_answers(std::span<const std::byte> head,
                                                PayloadReader& payload);

/// The same with protobuf; kUnimplemented in builds without.
std::vector<std::byte> write_protobuf_head(const OperationBatch& batch, PayloadWriter& payload);
std::vector<std::byte> write_protobuf_head(const std::vector<OperationAnswer>& answers,
                                           PayloadWriter& payload);
OperationBatch read_protobuf_batch(std::span<const std::byte> head, PayloadReader& payload);
std::vector<OperationAnswer> read_protobuf_answers(std::span<const std::byte> head,
                                                   PayloadReader& payload);
bool has_protobuf_heads();

}  // namespace tutti::internal
