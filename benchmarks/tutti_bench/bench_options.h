// Options for `tutti bench`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/cluster/connect_ranks.h"
#include "tutti/core/flags.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::bench {

/// kLocal: one object receives the buffers of all replicas in each call. kSpread: each rank is a
/// thread with its own memory and communicator. kProcesses: each rank is a process.
enum class BenchShape { kLocal, kSpread, kProcesses };

/// Flags as entered, with the names that nccl-tests gives to the same flags.
struct BenchFlags {
  std::string min_bytes = "1K";
  std::string max_bytes = "64M";
  std::int64_t step_factor = 4;
  std::string step_bytes = "0";
  std::int64_t iterations = 0;
  std::int64_t warm_up = 3;
  std::int64_t check = 1;
  std::string dtype = "float";
  std::string op = "sum";
  std::int64_t replicas = 2;
  std::int64_t rounds = 5;
  std::string op_names = "";
  std::string plugin = "";
  std::string plugin_options = "";
  std::string shape = "spread";
  std::string transport = "auto";
  std::string gradients = "cifar10_cnn";
  std::string json = "";
  /// Declares the flags of `tutti bench all_reduce`.
  void declare_all_reduce(Flags& flags);
};

struct BenchOptions {
  std::vector<std::size_t> sizes;  // in bytes
  int iterations = 0;              // calls per round; 0: depends on the size
  int warm_up = 0;
  bool check = true;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int replicas = 2;
  int rounds = 5;
  std::vector<std::string> op_names;
  std::string plugin_name;     // name of the operation that --plugin loads
  std::string plugin_options;  // for plugin_name; without --plugin, for all operations
  const std::string& plugin_options_of(const std::string& name) const {
    static const std::string none;
    return plugin_name.empty() || plugin_name == name ? plugin_options : none;
  }
  BenchShape shape = BenchShape::kSpread;
  ConnectOptions::Way way = ConnectOptions::Way::kAuto;  // connection between processes
  std::string gradients;
};

/// Checks the flags and loads the plugin. Throws kInvalidArgument, naming the flag, if a flag is
/// invalid.
BenchOptions parse_bench_options(const BenchFlags& flags);

/// Parses a size such as "1K", "4M", "1G" or "512", in powers of 1024. For any other text, throws
/// kInvalidArgument, naming the flag.
std::size_t parse_size(const std::string& flag, const std::string& text);

}  // namespace tutti::bench
