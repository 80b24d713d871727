// Runs a function once per rank, each time on a separate thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti {

/// Runs fn(rank) on one thread per rank. Returns each rank's error, or "" if the rank succeeded.
template <class Fn>
std::vector<std::string> errors_of_ranks(int size, const Fn& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Thread>> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.push_back(Executor::system().start("rank-" + std::to_string(rank), [&, rank] {
      try {
        fn(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    }));
  }
  for (const auto& thread : threads) thread->join();
  return errors;
}

/// Same as errors_of_ranks(), but returns only the error of the lowest failed rank, prefixed with
/// that rank; "" if no rank failed.
template <class Fn>
std::string error_of_ranks(int size, const Fn& fn) {
  const std::vector<std::string> errors = errors_of_ranks(size, fn);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) return "rank " + std::to_string(rank) + ": " + errors[rank];
  }
  return "";
}

/// Runs fn(rank) on one thread per rank and expects that no rank throws.
template <class Fn>
void expect_on_ranks(int size, const Fn& fn) {
  EXPECT_EQ(error_of_ranks(size, fn), "");
}

/// Same as expect_on_ranks(), but throws kInternal with the error instead of recording a failure.
template <class Fn>
void require_on_ranks(int size, const Fn& fn) {
  const std::string error = error_of_ranks(size, fn);
  if (!error.empty()) fail(ErrorCode::kInternal, error);
}

}  // namespace tutti
