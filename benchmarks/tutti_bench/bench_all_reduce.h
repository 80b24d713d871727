// Measurement of all_reduce of registered names, compared with this machine's lower bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Median, minimum and maximum over rounds, in seconds.
struct BenchTime {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
};

/// Result of one name at one size, in place or out of place.
struct BenchCell {
  BenchTime time;
  std::size_t num_wrong = 0;  // elements of all ranks; all of a rank that differs from rank 0
};

struct BenchRow {
  std::string name;
  std::size_t num_bytes = 0;  // of the gradients of one rank
  std::size_t count = 0;
  std::optional<BenchCell> out_of_place;  // empty: the shape supports only in-place calls
  BenchCell in_place;
  double largest_error = 0.0;  // of sums of this size and smaller, as in ListErrors
  BenchTime floor;
  BenchTime of_floor;  // the lower bound's time divided by the time in place, within one round
};

/// Returns the summary of the seconds of all rounds.
BenchTime summary_of(const std::vector<double>& rounds);

/// Returns GB/s of one rank's bytes; busbw multiplies by 2 (n - 1) / n, a link's load in a ring.
double algorithm_bandwidth(std::size_t num_bytes, double seconds);
double bus_bandwidth(std::size_t num_bytes, double seconds, int num_ranks);

struct BenchSkipped {
  std::string name;
  std::string reason;
};

struct BenchResults {
  int rank = 0;                   // of this process
  double ping_pong_before = 0.0;  // nanoseconds
  double ping_pong_after = 0.0;
  std::vector<BenchRow> rows;
  std::vector<BenchSkipped> skipped;
};

/// Measures all names at all sizes. Each round measures all names of a size and the lower bound in
/// turn. Calls `begin` before the first row, and `row` for each complete row.
BenchResults bench_all_reduce(const BenchOptions& options,
                              const std::function<void(const BenchResults&)>& begin,
                              const std::function<void(const BenchRow&)>& row);

}  // namespace tutti::bench
