// Stubs for a build without MPI.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti {
namespace {

constexpr const char* kNoMpi =
    "mpi: this build has no MPI; run apt-get install libopenmpi-dev openmpi-bin and configure "
    "with -DTUTTI_MPI=ON, or use another operation such as canonical";

}  // namespace

bool is_started_by_mpi() { return false; }
std::string mpi_library() { return {}; }

std::shared_ptr<Transport> mpi_transport(const MpiOptions&) {
  fail(ErrorCode::kUnimplemented, kNoMpi, ", or another transport such as tcp");
}

std::unique_ptr<internal::CollectiveEngine> internal::mpi_engine(const Group&, TimePoint) {
  fail(ErrorCode::kUnimplemented, kNoMpi);
}

}  // namespace tutti
