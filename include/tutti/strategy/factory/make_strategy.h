// Creates strategies by name, from options that flags and the environment can set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/flags.h"
#include "tutti/cross_device_ops/communication_options.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// Name and options of a strategy chosen at run time; one struct for all strategies. Options that
/// the chosen strategy does not use cause one logged warning but no error, because a program that
/// swaps strategies may set them. All strategies except parameter_server reject an update_mode
/// other than "sync".
struct StrategySpec {
  std::string strategy = "mirrored";  // one of strategy_names()
  std::string devices = "";           // "cpu:0-1", "gpu:0", "xla:0"; empty: default_devices()
  std::int64_t replicas = 0;          // 0: one replica per device
  /// Algorithm that sums gradients. If empty, "canonical" or, on GPUs, the strategy's preference.
  std::string cross_device_ops = "";
  std::string plugin_options = "";    // options of cross_device_ops: "k=0.01,name=value"
  std::int64_t bytes_per_pack = 0;    // 0: automatic
  std::string compression = "none";   // "none", "bfloat16" or "float16"
  std::string non_finite = "ignore";  // "ignore", "error" or "skip"
  /// Transport between workers: auto, shm or tcp.
  std::string transport = "auto";
  // Used by fully_sharded only:
  std::int64_t stage = 3;  // ZeRO stage: 1 shards slots, 2 also gradients, 3 also parameters
  std::int64_t min_shard_bytes = 64 << 10;  // smaller variables are mirrored
  // Used by mesh only:
  /// Sizes of the axes, as "data=2,model=4"; empty: one axis, "data", over all devices. If there is
  /// an axis "model", transformer_tensor_parallel() shards the layers over it; an axis "sequence"
  /// shards sequences.
  std::string mesh = "";
  std::string blocks = "";  // value of MeshOptions::blocks, such as "data=4,model=4"
  // Used by parameter_server only:
  std::string update_mode = "sync";        // "sync", "async" or "sync_replicas"
  std::int64_t replicas_to_aggregate = 0;  // used by sync_replicas only; 0: all workers
  std::int64_t parameter_servers = 1;  // number of servers in this process if there is no cluster
};

/// Returns "one_device", "mirrored", "central_storage", "fully_sharded", "multi_worker_mirrored",
/// "parameter_server", "mesh", "tpu".
std::vector<std::string> strategy_names();

/// Creates the strategy. multi_worker_mirrored, fully_sharded, parameter_server and mesh take their
/// cluster from the environment (resolver_from_environment()). Throws kInvalidArgument, naming the
/// option, for an unknown name or contradictory options, kUnimplemented if the build omits the
/// strategy, and the errors of the strategy's constructor.
std::unique_ptr<Strategy> make_strategy(const StrategySpec& spec);
/// Same as above, but takes the name separately: `make_strategy("mirrored", {.devices =
/// "cpu:0-1"})`.
std::unique_ptr<Strategy> make_strategy(std::string_view name, StrategySpec spec = {});

/// Returns `otherwise`, overridden by TUTTI_STRATEGY, TUTTI_DEVICES and TUTTI_CROSS_DEVICE_OPS.
StrategySpec strategy_spec_from_environment(StrategySpec otherwise = {});

/// Declares the flags that set the options in `spec`: --strategy, --devices, --replicas, ... The
/// values in `spec` are the defaults.
void add_strategy_flags(Flags& flags, StrategySpec& spec);

/// Returns the options in `spec` that control how gradients are summed.
CommunicationOptions communication_options(const StrategySpec& spec);

}  // namespace tutti
