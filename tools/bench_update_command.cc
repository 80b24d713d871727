// `tutti bench update`: what one pass over memory gains.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <string>

#include "tools/bench_team.h"
#include "tools/bench_update.h"
#include "tools/commands.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::tools {
namespace {

void print_head(const BenchOptions& options, double momentum, const UpdateResults& results) {
  std::printf("# tutti bench update: %d ranks on %d cores, gradients of %s, SGD with momentum %g\n",
              options.replicas, num_hardware_threads(), options.gradients.c_str(), momentum);
  std::printf("# separate: all_reduce, then a step on every rank; fused: all_reduce_and_update\n");
  std::printf("# of floor: the time of one pass with nothing of the library in it, by fused\n");
  std::printf("# cores before: %s (%.0f ns)\n", place_of_cores(results.ping_pong_before),
              results.ping_pong_before);
  std::printf("#%11s %12s %12s %12s %12s %21s %21s %21s %9s\n", "size", "count", "all_reduce",
              "separate", "fused", "separate / fused", "fused / all_reduce", "of floor",
              "same bits");
  std::printf("#%11s %12s %12s %12s %12s %21s %21s %21s\n", "(B)", "(elements)", "(us)", "(us)",
              "(us)", "(min .. max)", "(min .. max)", "(min .. max)");
  std::fflush(stdout);
}

std::string range_of(const BenchTime& time) {
  if (time.max == 0.0) return "-";
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.2f (%.2f .. %.2f)", time.median, time.min, time.max);
  return text.data();
}

void print_row(const UpdateRow& row) {
  std::printf("%12zu %12zu %12.2f %12.2f %12.2f %21s %21s %21s %9s\n", row.num_bytes, row.count,
              1e6 * row.all_reduce.median, 1e6 * row.separate.median, 1e6 * row.fused.median,
              range_of(row.gain).c_str(), range_of(row.of_all_reduce).c_str(),
              range_of(row.of_floor).c_str(), row.same_bits ? "yes" : "NO");
  std::fflush(stdout);
}

Json to_json(const BenchTime& time, double factor = 1.0) {
  return Json(Json::Object{
      {"median", factor * time.median}, {"min", factor * time.min}, {"max", factor * time.max}});
}

Json to_json(const BenchOptions& options, double momentum, const UpdateResults& results) {
  Json rows = Json::array();
  for (const UpdateRow& row : results.rows) {
    rows.push_back(Json(Json::Object{{"size", static_cast<std::int64_t>(row.num_bytes)},
                                     {"count", static_cast<std::int64_t>(row.count)},
                                     {"all_reduce_us", to_json(row.all_reduce, 1e6)},
                                     {"separate_us", to_json(row.separate, 1e6)},
                                     {"fused_us", to_json(row.fused, 1e6)},
                                     {"separate_by_fused", to_json(row.gain)},
                                     {"fused_by_all_reduce", to_json(row.of_all_reduce)},
                                     {"of_floor", to_json(row.of_floor)},
                                     {"same_bits", row.same_bits}}));
  }
  return Json(Json::Object{{"benchmark", "update"},
                           {"ranks", options.replicas},
                           {"cores", num_hardware_threads()},
                           {"gradients", options.gradients},
                           {"momentum", momentum},
                           {"rounds", options.rounds},
                           {"pingpong", Json(Json::Object{{"before_ns", results.ping_pong_before},
                                                          {"after_ns", results.ping_pong_after}})},
                           {"results", std::move(rows)}});
}

}  // namespace

int bench_update_command(const BenchFlags& flags) {
  BenchOptions options;
  try {
    options = parse_bench_options(flags);
    if (!(flags.momentum >= 0.0 && flags.momentum <= 1.0)) {
      fail(ErrorCode::kInvalidArgument, "--momentum: expected 0 to 1, got ", flags.momentum);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  const UpdateResults results = bench_update(
      options, flags.momentum,
      [&](const UpdateResults& begun) { print_head(options, flags.momentum, begun); }, print_row);
  std::printf("# cores after: %s (%.0f ns)\n", place_of_cores(results.ping_pong_after),
              results.ping_pong_after);
  if (!flags.json.empty()) {
    write_file_atomically(flags.json, to_json(options, flags.momentum, results).dump(1) + "\n");
  }
  for (const UpdateRow& row : results.rows) {
    if (row.same_bits) continue;
    std::fprintf(stderr, "tutti: %zu bytes: one pass gives other bits than two\n", row.num_bytes);
    return 1;
  }
  return 0;
}

}  // namespace tutti::tools
