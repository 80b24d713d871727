// Helpers for tests under mpirun: the group of all processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/waiting.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti::mpi_tests {

/// Returns the group of all processes, which exists until the program ends. Every process of the
/// job runs the same tests in the same order.
inline Transport& world() {
  static const std::shared_ptr<Transport> all = mpi_transport({.name = "world"});
  return *all;
}

/// Returns the list 0, ..., size - 1: process numbers in rank order.
inline std::vector<int> first_processes(int size) {
  std::vector<int> processes(static_cast<std::size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);
  return processes;
}

/// Returns a transport between the first `size` processes, each of which must call this function.
inline std::shared_ptr<Transport> transport_of_first(int size, std::string name = "first") {
  return mpi_transport({.processes = first_processes(size),
                        .name = std::move(name),
                        .timeout = std::chrono::seconds(60)});
}

}  // namespace tutti::mpi_tests
