// Measures empty closures per second: the cost per step of a coordinator and its workers.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: tutti run --chief --workers 2 --ps 1 -- closure_bench [ROUNDS], or closure_bench alone,
// which uses threads as workers. A round schedules 20,000 closures and joins; the first round is a
// warm-up. Finally, measures the latency of a single closure, from schedule() to its value.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::closure_bench {
namespace {

constexpr int kClosures = 20000;
constexpr int kSingles = 2000;

TimePoint now() { return Clock::system().now(); }

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(part * last)];
}

double closures_per_second(ClusterCoordinator& coordinator) {
  const TimePoint begin = now();
  for (int i = 0; i < kClosures; ++i) coordinator.schedule("nothing");
  coordinator.join();
  return kClosures / seconds_between(begin, now());
}

std::vector<double> microseconds_of_single_ones(ClusterCoordinator& coordinator) {
  std::vector<double> times;
  for (int i = 0; i < kSingles; ++i) {
    const TimePoint begin = now();
    (void)coordinator.schedule("nothing").get();
    times.push_back(1e6 * seconds_between(begin, now()));
  }
  return times;
}

int run(int rounds) {
  const auto resolver = resolver_from_environment();
  ParameterServerOptions options;
  options.num_workers = 2;
  options.coordinated = true;
  ParameterServerStrategy strategy(*resolver, options);
  ClusterCoordinator coordinator(strategy);
  coordinator.define("nothing", [] {});
  if (const auto code = coordinator.serve()) return *code;
  coordinator.start();
  std::vector<double> rates;
  for (int round = -1; round < rounds; ++round) {
    const double rate = closures_per_second(coordinator);
    if (round >= 0) rates.push_back(rate);
  }
  const std::vector<double> times = microseconds_of_single_ones(coordinator);
  std::printf("empty closures    %9.0f per second (median of %d rounds; %.0f to %.0f)\n",
              quantile(rates, 0.5), rounds, quantile(rates, 0.0), quantile(rates, 1.0));
  std::printf("one at a time     %9.0f us (median; p99 %.0f us)\n", quantile(times, 0.5),
              quantile(times, 0.99));
  return 0;
}

}  // namespace
}  // namespace tutti::closure_bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  if (argc > 2 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [ROUNDS]\n", argv[0]);
    return 2;
  }
  try {
    return tutti::closure_bench::run(rounds);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "closure_bench: %s\n", error.what());
    return 1;
  }
}
