// Implements the flags of `tutti bench`.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_options.h"

#include <algorithm>
#include <charconv>

#include "benchmarks/tutti_bench/bench_memory.h"
#include "core/names.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::bench {
namespace {

constexpr std::size_t kMostSizes = 1'000;

int whole(const char* flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return static_cast<int>(value);
  fail(ErrorCode::kInvalidArgument, flag, ": expected ", least, " to ", most, ", got ", value);
}

std::vector<std::size_t> sizes_of(const BenchFlags& flags) {
  const std::size_t first = parse_size("-b", flags.min_bytes);
  const std::size_t last = parse_size("-e", flags.max_bytes);
  const std::size_t step = parse_size("-i", flags.step_bytes);
  const auto factor = static_cast<std::size_t>(whole("-f", flags.step_factor, 2, 1'000'000));
  if (first == 0 || first > last) {
    fail(ErrorCode::kInvalidArgument, "-b: expected 1 byte or more and at most -e (",
         flags.max_bytes, "), got ", flags.min_bytes);
  }
  std::vector<std::size_t> sizes;
  for (std::size_t size = first; size <= last; size = step > 0 ? size + step : size * factor) {
    sizes.push_back(size);
    if (sizes.size() > kMostSizes) {
      fail(ErrorCode::kInvalidArgument, "-i: expected steps that give at most ", kMostSizes,
           " sizes, got steps of ", flags.step_bytes, "; use larger steps");
    }
  }
  return sizes;
}

/// Accepts both nccl-tests' and tutti's type names.
DType dtype_of_flag(const std::string& text) {
  if (text == "float") return DType::kFloat32;
  if (text == "double") return DType::kFloat64;
  if (text == "half") return DType::kFloat16;
  try {
    return parse_dtype(text);
  } catch (const Error& error) {
    throw error.with_context("-d");
  }
}

ReduceOp op_of_flag(const std::string& text) {
  if (text == "prod") return ReduceOp::kProduct;
  if (text == "avg") return ReduceOp::kMean;
  try {
    return parse_reduce_op(text);
  } catch (const Error& error) {
    throw error.with_context("-o");
  }
}

std::string load_plugin(const BenchFlags& flags) {
  if (flags.plugin.empty()) return "";
  try {
    return load_cross_device_ops_plugin(flags.plugin);
  } catch (const Error& error) {
    throw error.with_context("--plugin");
  }
}

std::vector<std::string> names_of(const BenchFlags& flags) {
  const std::vector<std::string> known = registered_cross_device_ops(DeviceType::kCpu);
  if (flags.op_names.empty()) return known;
  std::vector<std::string> names = split_text(flags.op_names);
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    fail(ErrorCode::kInvalidArgument, "--op-names: expected any of ", join(known), ", got '", name,
         "'");
  }
  return names;
}

}  // namespace

void BenchFlags::declare_all_reduce(Flags& flags) {
  flags.add("-b,--minbytes", min_bytes, "smallest size in bytes, or 1K, 4M, 1G");
  flags.add("-e,--maxbytes", max_bytes, "largest size");
  flags.add("-f,--stepfactor", step_factor, "factor from one size to the next");
  flags.add("-i,--stepbytes", step_bytes, "difference between sizes; 0: use the factor");
  flags.add("-n,--iters", iterations, "calls per round; 0: depends on the size");
  flags.add("-w,--warmup_iters", warm_up, "untimed calls before each round");
  flags.add("--rounds", rounds, "number of rounds; times are medians over them");
  flags.add_choice("--gradients", gradients, known_gradients(),
                   "network whose gradients are summed, scaled to the size");
  flags.add("--json", json, "file for the results");
  flags.add("-c,--check", check, "1: check the results; 0: do not check");
  flags.add("-d,--datatype", dtype, "float, double, half, bfloat16, int32, ...");
  flags.add("-o,--op", op, "sum, prod, min, max or avg");
  flags.add(
      "--replicas", replicas,
      "number of ranks (threads) or replicas; ignored in a job, where each process is a rank");
  flags.add("--op-names", op_names, "names separated by commas; empty: all registered names");
  flags.add("--plugin", plugin, "shared library with a cross-device operation");
  flags.add(
      "--plugin-options", plugin_options,
      "options of the plugin's operation (without --plugin: of all), such as k=0.01,name=value");
  flags.add_choice(
      "--shape", shape, {"spread", "local"},
      "spread: each rank is a thread with its own memory; local: one call for all ranks");
  flags.add_choice("--transport", transport, {"auto", "shm", "tcp"},
                   "connection between processes");
}

std::size_t parse_size(const std::string& flag, const std::string& text) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  const int shift = unit.empty()                 ? 0
                    : unit == "K" || unit == "k" ? 10
                    : unit == "M" || unit == "m" ? 20
                    : unit == "G" || unit == "g" ? 30
                                                 : -1;
  if (error != std::errc() || shift < 0 || value > (std::size_t{1} << 40) >> shift) {
    fail(ErrorCode::kInvalidArgument, flag,
         ": expected a number of bytes such as 512, 4K, 1M or 2G, got '", text, "'");
  }
  return value << shift;
}

BenchOptions parse_bench_options(const BenchFlags& flags) {
  BenchOptions options;
  options.sizes = sizes_of(flags);
  options.iterations = whole("-n", flags.iterations, 0, 1'000'000);
  options.warm_up = whole("-w", flags.warm_up, 0, 1'000'000);
  options.check = whole("-c", flags.check, 0, 1) == 1;
  options.dtype = dtype_of_flag(flags.dtype);
  options.op = op_of_flag(flags.op);
  options.replicas = whole("--replicas", flags.replicas, 2, 64);
  options.rounds = whole("--rounds", flags.rounds, 1, 10'000);
  options.shape = flags.shape == "local" ? BenchShape::kLocal : BenchShape::kSpread;
  options.way = parse_way(flags.transport);
  options.gradients = flags.gradients;
  options.plugin_name = load_plugin(flags);
  options.plugin_options = flags.plugin_options;
  options.op_names = names_of(flags);
  for (const std::string& name : options.op_names) {
    make_cross_device_ops(name, {}, options.plugin_options_of(name));
  }
  return options;
}

}  // namespace tutti::bench
