// Implements `tutti bench all_reduce`: prints a table in the format of nccl-tests for each
// registered operation.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_command.h"

#include <algorithm>
#include <cstdio>

#include "benchmarks/tutti_bench/bench_all_reduce.h"
#include "benchmarks/tutti_bench/bench_processes.h"
#include "benchmarks/tutti_bench/bench_team.h"
#include "core/file.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/json.h"

namespace tutti::bench {
namespace {

const char* short_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float";
    case DType::kFloat64:
      return "double";
    case DType::kFloat16:
      return "half";
    default:
      return to_string(dtype).data();
  }
}

const char* short_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "prod";
  }
  return "?";
}

const char* name_of(BenchShape shape) {
  return shape == BenchShape::kLocal    ? "local"
         : shape == BenchShape::kSpread ? "spread"
                                        : "processes";
}

void print_left_out(const BenchResults& results) {
  for (const BenchSkipped& each : results.skipped) {
    std::printf("# left out: %s: %s\n", each.name.c_str(), each.reason.c_str());
  }
}

void print_head(const BenchOptions& options, const BenchResults& results,
                const std::string& connections) {
  std::printf(
      "# tutti bench all_reduce: %s, %d ranks on %d cores, gradients of %s, %s\n",
      name_of(options.shape), options.replicas, num_hardware_threads(), options.gradients.c_str(),
      options.shape == BenchShape::kLocal ? "one call for each of them"
                                          : "a list of them in place, one buffer out of place");
  if (!connections.empty()) std::printf("# %s\n", connections.c_str());
  std::printf("# cores before: %s (%.0f ns)\n", place_of_cores(results.ping_pong_before),
              results.ping_pong_before);
  print_left_out(results);
  std::printf("#%59s %39s\n", "out-of-place", "in-place");
  std::printf("#%11s %12s %8s %6s %5s %9s %7s %7s %6s %9s %7s %7s %6s %9s %8s %15s  %s\n", "size",
              "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw",
              "busbw", "#wrong", "floor", "of floor", "(min .. max)", "operation");
  std::printf("#%11s %12s %8s %6s %5s %9s %7s %7s %6s %9s %7s %7s %6s %9s\n", "(B)", "(elements)",
              "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)");
  std::fflush(stdout);
}

void print_cell(const BenchOptions& options, const BenchRow& row,
                const std::optional<BenchCell>& cell) {
  if (!cell) {
    std::printf(" %9s %7s %7s %6s", "-", "-", "-", "-");
    return;
  }
  const double seconds = cell->time.median;
  std::printf(" %9.2f %7.2f %7.2f ", 1e6 * seconds, algorithm_bandwidth(row.num_bytes, seconds),
              bus_bandwidth(row.num_bytes, seconds, options.replicas));
  if (options.check) {
    std::printf("%6zu", cell->num_wrong);
  } else {
    std::printf("%6s", "N/A");
  }
}

void print_row(const BenchOptions& options, const BenchRow& row) {
  std::printf("%12zu %12zu %8s %6s %5d", row.num_bytes, row.count, short_name(options.dtype),
              short_name(options.op), -1);
  print_cell(options, row, row.out_of_place);
  print_cell(options, row, row.in_place);
  std::printf(" %9.2f %8.2f (%.2f .. %.2f)  %s\n", 1e6 * row.floor.median, row.of_floor.median,
              row.of_floor.min, row.of_floor.max, row.name.c_str());
  std::fflush(stdout);
}

Json to_json(const BenchTime& time, double factor) {
  Json json = Json::object();
  json.set("median", factor * time.median);
  json.set("min", factor * time.min);
  json.set("max", factor * time.max);
  return json;
}

Json to_json(const BenchOptions& options, const BenchRow& row, const BenchCell& cell) {
  Json json = Json::object();
  json.set("time_us", to_json(cell.time, 1e6));
  json.set("algbw", algorithm_bandwidth(row.num_bytes, cell.time.median));
  json.set("busbw", bus_bandwidth(row.num_bytes, cell.time.median, options.replicas));
  json.set("wrong", options.check ? Json(static_cast<std::int64_t>(cell.num_wrong)) : Json());
  return json;
}

Json to_json(const BenchOptions& options, const BenchRow& row) {
  Json json = Json::object();
  json.set("name", row.name);
  json.set("size", static_cast<std::int64_t>(row.num_bytes));
  json.set("count", static_cast<std::int64_t>(row.count));
  json.set("out_of_place", row.out_of_place ? to_json(options, row, *row.out_of_place) : Json());
  json.set("in_place", to_json(options, row, row.in_place));
  json.set("largest_error", row.largest_error);
  json.set("floor_us", to_json(row.floor, 1e6));
  json.set("of_floor", to_json(row.of_floor, 1.0));
  return json;
}

Json to_json(const BenchOptions& options, const BenchResults& results) {
  Json json = Json::object();
  json.set("benchmark", "all_reduce");
  json.set("shape", name_of(options.shape));
  json.set("ranks", options.replicas);
  json.set("cores", num_hardware_threads());
  json.set("gradients", options.gradients);
  json.set("type", std::string(to_string(options.dtype)));
  json.set("redop", short_name(options.op));
  json.set("rounds", options.rounds);
  Json cores = Json::object();
  cores.set("before_ns", results.ping_pong_before);
  cores.set("after_ns", results.ping_pong_after);
  cores.set("before", place_of_cores(results.ping_pong_before));
  cores.set("after", place_of_cores(results.ping_pong_after));
  json.set("pingpong", std::move(cores));
  Json rows = Json::array();
  for (const BenchRow& row : results.rows) rows.push_back(to_json(options, row));
  json.set("results", std::move(rows));
  Json skipped = Json::array();
  for (const BenchSkipped& each : results.skipped) {
    Json entry = Json::object();
    entry.set("name", each.name);
    entry.set("reason", each.reason);
    skipped.push_back(std::move(entry));
  }
  json.set("left_out", std::move(skipped));
  return json;
}

void print_end(const BenchOptions& options, const BenchResults& results) {
  // In a job, operations are skipped during the measurement, so the list is complete only now.
  if (options.shape == BenchShape::kProcesses) print_left_out(results);
  for (const std::string& name : options.op_names) {
    double sum = 0.0;
    double largest_error = 0.0;
    int num_rows = 0;
    for (const BenchRow& row : results.rows) {
      if (row.name != name) continue;
      largest_error = std::max(largest_error, row.largest_error);
      sum += bus_bandwidth(row.num_bytes, row.in_place.time.median, options.replicas);
      ++num_rows;
    }
    if (num_rows == 0) continue;
    std::printf("# Avg bus bandwidth in place: %.3f GB/s, %s\n", sum / num_rows, name.c_str());
    if (largest_error == 0.0) continue;
    std::printf("# Largest error of a sum: %.3g of the sum of the ranks' largest magnitudes, %s\n",
                largest_error, name.c_str());
  }
  std::printf("# cores after: %s (%.0f ns)\n", place_of_cores(results.ping_pong_after),
              results.ping_pong_after);
}

/// Runs the measurement. `job` is the job whose processes are the ranks, or null if ranks are
/// threads of this process.
BenchResults measured(const BenchOptions& options, const ClusterResolver* job) {
  const auto row = [&](const BenchRow& each) { print_row(options, each); };
  if (job != nullptr) {
    return bench_processes(
        options, *job,
        [&](const BenchResults& begun, const std::string& connections) {
          print_head(options, begun, connections);
        },
        row);
  }
  return bench_all_reduce(
      options, [&](const BenchResults& begun) { print_head(options, begun, ""); }, row);
}

}  // namespace

int bench_all_reduce_command(const BenchFlags& flags) {
  BenchOptions options;
  try {
    options = parse_bench_options(flags);
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  const std::unique_ptr<ClusterResolver> resolver = resolver_from_environment();
  const std::size_t num_workers = training_tasks(resolver->cluster_spec()).size();
  const bool is_job = num_workers > 1;
  if (is_job && options.shape == BenchShape::kLocal) {
    std::fprintf(stderr, "tutti: --shape local: expected one process, got a job of %zu\n",
                 num_workers);
    return 2;
  }
  if (is_job) {
    options.shape = BenchShape::kProcesses;
    options.replicas = static_cast<int>(num_workers);
  }
  const BenchResults results = measured(options, is_job ? resolver.get() : nullptr);
  if (results.rank != 0) return 0;  // process 0 has the same results, and prints them
  print_end(options, results);
  if (!flags.json.empty()) {
    write_file_atomically(flags.json, to_json(options, results).dump(1) + "\n");
  }
  if (results.rows.empty()) {
    std::fprintf(stderr, "tutti: nothing to measure: every name was left out\n");
    return 1;
  }
  for (const BenchRow& row : results.rows) {
    if (row.in_place.num_wrong > 0 || (row.out_of_place && row.out_of_place->num_wrong > 0)) {
      std::fprintf(stderr, "tutti: %s: wrong results\n", row.name.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace tutti::bench
