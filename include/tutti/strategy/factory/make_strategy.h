// A strategy by its name, from options that flags and the environment can set.
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

/// Options that a program can let its user choose: every strategy takes the same ones. Those that
/// it does not use are logged once as a warning, since a program that swaps strategies may set
/// them; an update_mode other than "sync" is refused by all but parameter_server.
struct StrategySpec {
  std::string strategy = "mirrored";  // one of strategy_names()
  std::string devices = "";           // "cpu:0-1", "gpu:0", "xla:0"; empty: default_devices()
  std::int64_t replicas = 0;          // 0: one per device
  /// How gradients are summed; empty: canonical, or what the strategy prefers on GPUs.
  std::string cross_device_ops = "";
  std::string plugin_options = "";    // of that operation's own: "k=0.01,name=value"
  std::int64_t bytes_per_pack = 0;    // 0: automatic
  std::string compression = "none";   // bfloat16, float16
  std::string non_finite = "ignore";  // error, skip, zero
  /// How bytes get from worker to worker: auto, shm, tcp.
  std::string transport = "auto";
  // Of fully_sharded alone.
  std::int64_t stage = 3;  // what is cut over the replicas: 1 slots, 2 gradients too, 3 parameters
  std::int64_t min_shard_bytes = 64 << 10;  // smaller variables are mirrored
  // Of parameter_server alone.
  std::string update_mode = "sync";        // async, sync_replicas
  std::int64_t replicas_to_aggregate = 0;  // of sync_replicas; 0: all workers
  std::int64_t parameter_servers = 1;      // in this process, where there is no cluster
};

/// "one_device", "mirrored", "central_storage", "fully_sharded", "multi_worker_mirrored",
/// "parameter_server", "tpu".
std::vector<std::string> strategy_names();

/// The strategy of these options; the cluster of multi_worker_mirrored, fully_sharded and
/// parameter_server is that of the environment (resolver_from_environment()). Throws
/// kInvalidArgument naming the option for an unknown name and for combinations that make no sense,
/// and what the strategy's constructor throws.
std::unique_ptr<Strategy> make_strategy(const StrategySpec& spec);
/// `make_strategy("mirrored", {.devices = "cpu:0-1"})`.
std::unique_ptr<Strategy> make_strategy(std::string_view name, StrategySpec spec = {});

/// `otherwise` with what TUTTI_STRATEGY, TUTTI_DEVICES and TUTTI_CROSS_DEVICE_OPS say in its place.
StrategySpec strategy_spec_from_environment(StrategySpec otherwise = {});

/// Declares --strategy, --devices, --replicas, --cross-device-ops, --transport and the like, bound
/// to `spec`, whose values are the defaults.
void add_strategy_flags(Flags& flags, StrategySpec& spec);

/// How the options want gradients to be summed.
CommunicationOptions communication_options(const StrategySpec& spec);

}  // namespace tutti
