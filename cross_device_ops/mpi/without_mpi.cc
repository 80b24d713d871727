// What a build without MPI says.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_engine.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti {

bool is_started_by_mpi() { return false; }
std::string mpi_library() { return {}; }

std::shared_ptr<Transport> mpi_transport(const MpiOptions&) {
  fail(ErrorCode::kUnimplemented, internal::why_no_mpi(), ", or another transport such as tcp");
}

namespace internal {

std::string why_no_mpi() {
  return "mpi: this build has no MPI; try apt-get install libopenmpi-dev openmpi-bin and "
         "configuring with -DTUTTI_MPI=ON, or another operation such as canonical";
}

std::unique_ptr<CollectiveEngine> mpi_engine(const Group&, TimePoint) {
  fail(ErrorCode::kUnimplemented, why_no_mpi());
}

}  // namespace internal
}  // namespace tutti
