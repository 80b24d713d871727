// Comparison of the registered operations' all_reduce with this machine's lower bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Median, minimum and maximum, over the rounds, of a time in seconds or of a ratio.
struct BenchTime {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
};

/// Result of one operation at one size, either in place or out of place.
struct BenchCell {
  BenchTime time;
  // Number of wrong elements on all ranks. If a rank's bytes differ from rank 0's, all of its
  // elements count as wrong.
  std::size_t num_wrong = 0;
};

struct BenchRow {
  std::string name;
  std::size_t num_bytes = 0;  // bytes of one rank's gradients
  std::size_t count = 0;
  std::optional<BenchCell> out_of_place;  // empty if the shape supports only in-place calls
  BenchCell in_place;
  // Largest ListErrors::largest; if ranks are threads, over this size and all smaller ones.
  double largest_error = 0.0;
  BenchTime floor;
  BenchTime of_floor;  // lower bound divided by the in-place time, within one round
};

/// Returns the median, minimum and maximum duration of the rounds.
BenchTime summary_of(const std::vector<double>& rounds);

/// Both functions return rates in GB/s. The algorithm bandwidth is one rank's bytes per second. The
/// bus bandwidth is 2 (n - 1) / n times as high: the load of each link in a ring.
double algorithm_bandwidth(std::size_t num_bytes, double seconds);
double bus_bandwidth(std::size_t num_bytes, double seconds, int num_ranks);

struct BenchSkipped {
  std::string name;
  std::string reason;
};

struct BenchResults {
  int rank = 0;                   // rank of this process
  double ping_pong_before = 0.0;  // in nanoseconds
  double ping_pong_after = 0.0;
  std::vector<BenchRow> rows;
  std::vector<BenchSkipped> skipped;
};

/// Measures all operations at all sizes. In each round, the operations and the lower bound are
/// measured one after another. Calls `begin` before the first row, and `row` for each complete row.
BenchResults bench_all_reduce(const BenchOptions& options,
                              const std::function<void(const BenchResults&)>& begin,
                              const std::function<void(const BenchRow&)>& row);

}  // namespace tutti::bench
