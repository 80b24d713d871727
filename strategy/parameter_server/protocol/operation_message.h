// Batches of operations as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parameter_server.pb.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/protocol/tensor_payload.h"

namespace tutti::internal {

/// Tensors go into the payload in the order in which they stand in operation.h. Throws
/// kInvalidArgument for what is beyond the limits of encoding.h, and for undefined tensors.
void put_batch(const OperationBatch& batch, PayloadWriter& payload, v1::OperationBatch& out);
/// Throws kDataLoss for what put_batch() does not write.
OperationBatch get_batch(const v1::OperationBatch& in, PayloadReader& payload);

}  // namespace tutti::internal
