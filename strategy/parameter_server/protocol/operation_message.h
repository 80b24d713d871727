// Batches of operations, and answers, as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include "parameter_server.pb.h"
#include "strategy/parameter_server/protocol/operation.h"
#include "strategy/parameter_server/protocol/tensor_payload.h"
#include "tutti/core/error.h"

namespace tutti::internal {

/// Tensors go into the payload in the order in which they stand in operation.h. Throws
/// kInvalidArgument for what is beyond its limits, and for undefined tensors.
void put_batch(const OperationBatch& batch, PayloadWriter& payload, v1::OperationBatch& out);
/// Throws kDataLoss for what put_batch() does not write.
OperationBatch get_batch(const v1::OperationBatch& in, PayloadReader& payload);

void put_answers(std::span<const OperationAnswer> answers, PayloadWriter& payload,
                 v1::OperationAnswers& out);
std::vector<OperationAnswer> get_answers(const v1::OperationAnswers& in, PayloadReader& payload);

// Parts of these: operations that come in rows share a message, in columns.

template <class Op>
concept GoesInColumns =
    std::same_as<Op, ReadShard> || std::same_as<Op, AssignShard> || std::same_as<Op, UpdateShard>;

/// Writes the operations from the first one on that fit in one message of columns; their tensors go
/// into the payload. Returns how many these are; 0: the first is of a kind that has none.
std::size_t put_run(std::span<const Operation> operations, PayloadWriter& payload,
                    v1::Operation& out);
template <class... Parts>
[[noreturn]] void refuse_batch(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "head of a batch: ", parts...);
}
/// Throws kDataLoss for more than kMostOperations.
void check_count(std::size_t count);
/// Appends what put_run() wrote. Throw kDataLoss for columns that do not fit together, and before
/// there are more than kMostOperations.
void get_run(const v1::ReadShards& in, std::vector<Operation>& out);
void get_run(const v1::AssignShards& in, PayloadReader& payload, std::vector<Operation>& out);
void get_run(const v1::UpdateShards& in, PayloadReader& payload, std::vector<Operation>& out);

}  // namespace tutti::internal
