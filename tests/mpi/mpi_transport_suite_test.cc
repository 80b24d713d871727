// Runs the transport suite on the MPI transport: all ranks in one process, messages by MPI.
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_suite.h"
#include "tests/mpi/mpi_world.h"

namespace tutti::transport_suite {

// Messages go through MPI even if sender and receiver are one process; each process of the job runs
// the suite separately.
struct MpiGroups {
  static Group make(int size) {
    const int process = mpi_tests::world().rank();
    Group group(static_cast<std::size_t>(size));
    require_on_ranks(size, [&](int rank) {
      group[static_cast<std::size_t>(rank)] =
          mpi_transport({.processes = std::vector<int>(group.size(), process), .rank = rank});
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, TransportSuite, MpiGroups);

}  // namespace tutti::transport_suite
