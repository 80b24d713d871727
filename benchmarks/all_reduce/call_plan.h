// Call count and report, shared by the programs that are compared with `tutti bench all_reduce`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// Returns the sizes, in bytes, from argument FIRST to argument LAST; each is 4 times the previous
/// one.
inline std::vector<std::size_t> sizes_from(int argc, char** argv, int first_argument) {
  std::vector<std::size_t> sizes;
  if (argc <= first_argument + 1) return sizes;
  const auto last = static_cast<std::size_t>(std::atoll(argv[first_argument + 1]));
  for (auto size = static_cast<std::size_t>(std::atoll(argv[first_argument])); size <= last;
       size *= 4) {
    if (size == 0) break;
    sizes.push_back(size);
  }
  return sizes;
}

/// Returns the number of calls that take about 60 ms, estimated at 10 us per call plus 1 ns per
/// byte; all processes get the same number. Returns at least 20 if the buffers fit into a large
/// cache, because the first calls fill the cache.
inline int num_calls(std::size_t num_bytes) {
  const double seconds = 10e-6 + static_cast<double>(num_bytes) / 1e9;
  const double least = num_bytes <= (std::size_t{64} << 20) ? 20.0 : 3.0;
  return static_cast<int>(std::clamp(0.06 / seconds, least, 1'000.0));
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

/// Prints the result as one line of JSON.
inline void report(const std::string& name, std::size_t num_bytes, double seconds, bool right) {
  std::printf("{\"name\": \"%s\", \"size\": %zu, \"time_us\": %.3f, \"right\": %s}\n", name.c_str(),
              num_bytes, 1e6 * seconds, right ? "true" : "false");
  std::fflush(stdout);
}

}  // namespace tutti::benchmarks
