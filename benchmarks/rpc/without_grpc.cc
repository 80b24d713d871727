// Stub for the bare stream in builds without gRPC.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/rpc/contender.h"

namespace tutti::rpc_bench {

std::unique_ptr<Contender> bare_grpc_stream() { return nullptr; }

}  // namespace tutti::rpc_bench
