// Operations in a row, and answers, as columns of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parameter_server.pb.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/protocol/tensor_payload.h"

namespace tutti::internal {

/// How many operations from the first one on fit in one message of columns; 0: it is of a kind that
/// has none, or alone.
std::size_t length_of_run(std::span<const Operation> operations);
/// Such a run; its tensors go into the payload.
void put_run(std::span<const Operation> run, PayloadWriter& payload, v1::Operation& out);

/// Appends what put_run() wrote. Throw kDataLoss for columns that do not fit together, and before
/// there are more than kMostOperations.
void get_run(const v1::ReadShards& in, std::vector<Operation>& out);
void get_run(const v1::AssignShards& in, PayloadReader& payload, std::vector<Operation>& out);
void get_run(const v1::UpdateShards& in, PayloadReader& payload, std::vector<Operation>& out);

void put_answers(std::span<const OperationAnswer> answers, PayloadWriter& payload,
                 v1::OperationAnswers& out);
std::vector<OperationAnswer> get_answers(const v1::OperationAnswers& in, PayloadReader& payload);

// Parts that operations alone have, too.
void put_scalars(const UpdateScalars& scalars, v1::UpdateScalars& out);
UpdateScalars get_scalars(const v1::UpdateScalars& in);
void put_sync(const SyncSpec& sync, v1::SyncSpec& out);
SyncSpec get_sync(const v1::SyncSpec& in);

}  // namespace tutti::internal
