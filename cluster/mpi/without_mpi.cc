// What a build without MPI says.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/mpi/mpi_transport.h"
#include "tutti/cross_device_ops/mpi/mpi_engine.h"

namespace tutti {

std::shared_ptr<Transport> mpi_transport(const MpiOptions&) {
  fail(ErrorCode::kUnimplemented, internal::why_no_mpi(), ", or another transport such as tcp");
}

}  // namespace tutti
