// Nests as parts of messages, for files that know nest.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nest.pb.h"
#include "strategy/parameter_server/protocol/tensor_payload.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

/// Throws kInvalidArgument for one deeper than Nest::kDeepest.
void put_nest(const Nest& nest, PayloadWriter& payload, v1::Nest& out);
/// Throws kDataLoss for what put_nest() does not write.
Nest get_nest(const v1::Nest& in, PayloadReader& payload);
void put_handle(const PerWorkerHandle& handle, v1::Nest::PerWorkerHandle& out);
PerWorkerHandle get_handle(const v1::Nest::PerWorkerHandle& in);

}  // namespace tutti::internal
