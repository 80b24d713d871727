// What programs may ask about MPI without starting it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Whether a launcher that knows MPI (mpirun, srun with its MPI plugin) has started this process,
/// by the variables that it sets. Any thread.
bool is_started_by_mpi();

/// The library that this program runs with ("Open MPI v4.1.4"); empty in a build without MPI. Does
/// not initialise it. Any thread.
std::string mpi_library();

}  // namespace tutti
