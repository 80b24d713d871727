// Closures that change variables per second: what each durability of servers costs.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: tutti run --chief --workers 2 --ps 2 -- durability_bench DURABILITY [BYTES [ROUNDS]]. Each
// closure adds to a variable of BYTES on each server (default 8). A round schedules closures for
// about a second and joins; the first warms up. Snapshots and logs go to a new folder in the
// temporary one.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::durability_bench {
namespace {

constexpr int kServers = 2;

TimePoint now() { return Clock::system().now(); }

/// Removed at the end.
struct Folder {
  const std::string path = (std::filesystem::temp_directory_path() /
                            concat("tutti_durability_bench_", static_cast<int>(::getpid())))
                               .string();
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

double closures_per_second(ClusterCoordinator& coordinator, int count) {
  const TimePoint begin = now();
  for (int i = 0; i < count; ++i) coordinator.schedule("add");
  coordinator.join();
  return count / seconds_between(begin, now());
}

void run(Durability durability, std::int64_t bytes, int rounds) {
  const auto resolver = resolver_from_environment();
  const Folder folder;
  ParameterServerOptions options;
  options.coordinated = true;
  options.durability = durability;
  ParameterServerStrategy strategy(*resolver, options);
  const auto scope = strategy.scope();
  std::vector<Variable> variables;
  const std::int64_t elements = std::max<std::int64_t>(1, bytes / 8);
  for (int i = 0; i < kServers; ++i) {
    variables.emplace_back(Tensor::zeros({elements}, DType::kInt64),
                           VariableOptions{.name = concat("v", i)});
  }
  ClusterCoordinatorOptions coordinating;
  if (durability != Durability::kNone) coordinating.snapshots.folder = folder.path;
  ClusterCoordinator coordinator(strategy, coordinating);
  const Tensor ones = Tensor::ones({elements}, DType::kInt64);
  coordinator.define("add", [&] {
    for (Variable& each : variables) each.assign_add(ones);
  });
  coordinator.start();
  const int count = std::max(20, static_cast<int>(closures_per_second(coordinator, 20)));
  std::vector<double> rates;
  for (int round = -1; round < rounds; ++round) {
    const double rate = closures_per_second(coordinator, count);
    if (round >= 0) rates.push_back(rate);
  }
  std::ranges::sort(rates);
  const double median = rates[rates.size() / 2];
  std::printf(
      "%-10s %9lld bytes  %9.0f closures/s  %8.1f MiB/s of changes  (median of %d rounds; %.0f to "
      "%.0f)\n",
      to_string(durability).c_str(), static_cast<long long>(bytes), median,
      median * kServers * static_cast<double>(8 * elements) / (1 << 20), rounds, rates.front(),
      rates.back());
}

}  // namespace
}  // namespace tutti::durability_bench

int main(int argc, char** argv) {
  const long long bytes = argc > 2 ? std::atoll(argv[2]) : 8;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  if (argc < 2 || argc > 4 || bytes < 8 || rounds < 1) {
    std::fprintf(stderr, "usage: %s DURABILITY [BYTES [ROUNDS]]\n", argv[0]);
    return 2;
  }
  try {
    tutti::durability_bench::run(tutti::parse_durability(argv[1]), bytes, rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "durability_bench: %s\n", error.what());
    return 1;
  }
}
