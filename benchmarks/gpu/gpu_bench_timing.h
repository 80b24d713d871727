// Timing of rounds of calls: median, minimum and maximum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "benchmarks/gpu/gpu_bench.h"
#include "tutti/core/clock.h"

namespace tutti::benchmarks {

inline Json summary_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  Json summary = Json::object();
  summary.set("median", seconds[seconds.size() / 2]);
  summary.set("min", seconds.front()).set("max", seconds.back());
  return summary;
}

/// In each round, calls `body` repeatedly and then `finish`, which waits for the results. Returns
/// the seconds per call.
template <class Body, class Finish>
Json seconds_per_call(const BenchArguments& arguments, const Body& body, const Finish& finish) {
  const Clock& clock = Clock::system();
  body();
  finish();
  std::vector<double> seconds;
  for (std::int64_t round = 0; round < arguments.rounds; ++round) {
    const TimePoint begin = clock.now();
    for (std::int64_t i = 0; i < arguments.iterations; ++i) body();
    finish();
    seconds.push_back(seconds_between(begin, clock.now()) /
                      static_cast<double>(arguments.iterations));
  }
  return summary_of(std::move(seconds));
}

}  // namespace tutti::benchmarks
