// What the tests under mpirun share: the group of all processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/waiting.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti::mpi_tests {

/// Every process of the job runs the same tests in the same order. Kept to the end of the program.
inline Transport& world() {
  static const std::shared_ptr<Transport> all = mpi_transport({.name = "world"});
  return *all;
}

/// Processes 0 to size - 1, as ranks of these numbers.
inline std::vector<int> first_processes(int size) {
  std::vector<int> processes(static_cast<std::size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);
  return processes;
}

/// A transport of these processes. Called by each of them.
inline std::shared_ptr<Transport> transport_of_first(int size, std::string name = "first") {
  return mpi_transport({.processes = first_processes(size),
                        .name = std::move(name),
                        .timeout = std::chrono::seconds(60)});
}

}  // namespace tutti::mpi_tests
