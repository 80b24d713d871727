// Implements the flags that all examples share.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/example_options.h"

#include <algorithm>
#include <cstdio>

#include "tutti/core/random.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti::examples {
namespace {

// Error for invalid user input; the program then exits with code 2.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

void require_positive(const char* flag, std::int64_t value, std::int64_t least) {
  if (value < least) {
    throw UsageError(concat(flag, ": expected >= ", least, ", got ", value));
  }
}

void load_plugin(ExampleOptions& options) {
  if (options.plugin.empty()) return;
  try {
    const std::string name = load_cross_device_ops_plugin(options.plugin);
    const bool chosen = options.cross_device_ops != ExampleOptions().cross_device_ops;
    if (!chosen) options.cross_device_ops = name;
  } catch (const Error& error) {
    throw error.with_context("--plugin");
  }
}

void check(const ExampleOptions& options) {
  require_positive("--batch-size", options.batch_size, 1);
  require_positive("--epochs", options.epochs, 1);
  require_positive("--steps", options.steps, 0);
  require_positive("--replicas", options.replicas, 0);
  require_positive("--seed", options.seed, 0);
  require_positive("--bytes-per-pack", options.bytes_per_pack, 0);
  require_positive("--parameter-servers", options.parameter_servers, 1);
  require_positive("--replicas-to-aggregate", options.replicas_to_aggregate, 0);
  if (options.strategy == "one_device" && options.replicas > 1) {
    throw UsageError(concat("--strategy one_device: expected --replicas 1, got ", options.replicas,
                            "; use --strategy mirrored"));
  }
  if (options.update_mode != "sync" && options.strategy != "parameter_server") {
    throw UsageError(concat("--update-mode ", options.update_mode, ": steps of --strategy ",
                            options.strategy, " are synchronous; use --strategy parameter_server"));
  }
  const auto names = registered_cross_device_ops();
  if (std::ranges::find(names, options.cross_device_ops) == names.end()) {
    throw UsageError(concat("--cross-device-ops: expected one of ", join(names), ", got ",
                            options.cross_device_ops));
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    throw UsageError("--resume: expected --checkpoint-dir as well, got none");
  }
}

void declare(Flags& flags, ExampleOptions& options) {
  add_strategy_flags(flags, options);
  flags.add("--virtual-gpus", options.virtual_gpus,
            "splits each GPU into virtual GPUs: 4, or 4:512 for 512 MiB each");
  flags.add("--plugin", options.plugin, "shared library with a cross-device operation");
  flags.add_choice("--dtype-policy", options.dtype_policy,
                   {"float32", "mixed_bfloat16", "mixed_float16"},
                   "element types of weights and of arithmetic");
  flags.add("--batch-size", options.batch_size, "global batch size");
  flags.add("--epochs", options.epochs, "passes over the data");
  flags.add("--steps", options.steps, "ends after this many steps; 0: no limit");
  flags.add("--seed", options.seed, "seed of weights, shuffling and dropout");
  flags.add("--data-dir", options.data_dir, "folder with the data set");
  flags.add("--log-dir", options.log_dir, "folder for log.jsonl and TensorBoard events");
  flags.add("--checkpoint-dir", options.checkpoint_dir, "folder for checkpoints");
  flags.add("--resume", options.resume, "continues from the latest checkpoint");
  flags.add("--metrics-json", options.metrics_json, "file for the results of the run");
  flags.add("--trace", options.trace, "file for a Chrome trace of what each thread ran");
}

}  // namespace

ExampleOptions::ExampleOptions() {
  devices = "cpu:0-1";
  cross_device_ops = "canonical";
  static_cast<StrategySpec&>(*this) = strategy_spec_from_environment(*this);
}

int parse_options(int argc, char** argv, const std::string& description, ExampleOptions& options,
                  const std::function<void(Flags&)>& add_more) {
  Flags flags(description);
  declare(flags, options);
  if (add_more) add_more(flags);
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  if (!options.mesh.empty()) {
    const ExampleOptions defaults;
    if (options.strategy == defaults.strategy) options.strategy = "mesh";
    // An empty list gives each position of the mesh its own virtual CPU.
    if (options.devices == defaults.devices) options.devices = "";
  }
  try {
    load_plugin(options);
    check(options);
    if (!options.virtual_gpus.empty()) {
      set_virtual_gpus(parse_virtual_gpus("--virtual-gpus", options.virtual_gpus));
    }
    if (!options.devices.empty()) (void)parse_devices(options.devices);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  set_random_seed(static_cast<std::uint64_t>(options.seed));
  set_dtype_policy(options.dtype_policy);
  if (!options.trace.empty()) start_trace(options.trace);
  return -1;
}

void require_flag(const char* flag, const std::string& value, const char* expected) {
  if (value.empty()) throw UsageError(concat(flag, ": expected ", expected, ", got none"));
}

void print_setup(const ExampleOptions& options, Strategy& strategy) {
  if (!strategy.is_chief()) return;
  const int replicas = strategy.num_replicas_in_sync();
  std::printf("devices    %s\n", join(strategy.worker_devices()).c_str());
  std::printf("strategy   %s, %d replica%s, reduction %s, global batch %lld\n",
              std::string(strategy.name()).c_str(), replicas, replicas == 1 ? "" : "s",
              std::string(strategy.reduction_name()).c_str(),
              static_cast<long long>(options.batch_size));
  std::fflush(stdout);
}

int run_example(const std::function<int()>& body) {
  try {
    const int code = body();
    stop_trace();
    return code;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace tutti::examples
