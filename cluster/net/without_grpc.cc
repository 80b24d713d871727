// What takes the place of connections between ranks in builds without gRPC: a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/connect_all.h"
#include "tutti/core/error.h"

namespace tutti::internal {

Connections connect_all(int, int, KeyValueStore&, const ConnectOptions& options,
                        const FileDescriptor&) {
  fail(ErrorCode::kUnimplemented, name_of(options.way),
       ": this build has no gRPC, so it has one process, or those of mpirun; build with "
       "libgrpc++-dev and protobuf-compiler-grpc for more");
}

}  // namespace tutti::internal
