// Implements make_strategy() and the flags for its options.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/factory/make_strategy.h"

#include <algorithm>
#include <cstdlib>

#include "core/names.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/mesh/mesh_strategy.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/strategies.h"
#ifndef TUTTI_WITHOUT_GRPC
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#endif
#ifndef TUTTI_WITHOUT_XLA
#include "tutti/strategy/tpu_strategy.h"
#endif

namespace tutti {
namespace {

void require_at_least(const char* option, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  fail(ErrorCode::kInvalidArgument, "strategy options: ", option, ": expected >= ", least, ", got ",
       value);
}

/// Warns about options that the chosen strategy does not use. They are not errors, because a
/// program that swaps strategies may set them on purpose.
void warn_of_unused_options(const StrategySpec& spec) {
  const StrategySpec defaults;
  const auto warn_unless_used = [&](const char* option, const auto& value, const auto& otherwise,
                                    const std::vector<std::string>& owners) {
    if (value == otherwise || std::ranges::find(owners, spec.strategy) != owners.end()) return;
    log_warning_once(concat("strategy options: ", option, " ", value, " is an option of ",
                            join(owners), "; ", spec.strategy, " does not use it"));
  };
  const std::vector<std::string> sharded = {"fully_sharded"}, servers = {"parameter_server"},
                                 mesh = {"mesh"},
                                 workers = {"multi_worker_mirrored", "fully_sharded",
                                            "parameter_server", "mesh"};
  warn_unless_used("stage", spec.stage, defaults.stage, sharded);
  warn_unless_used("min_shard_bytes", spec.min_shard_bytes, defaults.min_shard_bytes, sharded);
  warn_unless_used("mesh", spec.mesh, defaults.mesh, mesh);
  warn_unless_used("blocks", spec.blocks, defaults.blocks, mesh);
  warn_unless_used("replicas_to_aggregate", spec.replicas_to_aggregate,
                   defaults.replicas_to_aggregate, servers);
  warn_unless_used("parameter_servers", spec.parameter_servers, defaults.parameter_servers,
                   servers);
  warn_unless_used("transport", spec.transport, defaults.transport, workers);
}

void check(const StrategySpec& spec) {
  const std::vector<std::string> names = strategy_names();
  if (std::ranges::find(names, spec.strategy) == names.end()) {
    fail(ErrorCode::kInvalidArgument, "strategy options: no strategy is named '", spec.strategy,
         "'; expected one of ", internal::choices(names, spec.strategy));
  }
  require_at_least("replicas", spec.replicas, 0);
  require_at_least("bytes_per_pack", spec.bytes_per_pack, 0);
  require_at_least("stage", spec.stage, 1);
  require_at_least("min_shard_bytes", spec.min_shard_bytes, 0);
  require_at_least("replicas_to_aggregate", spec.replicas_to_aggregate, 0);
  require_at_least("parameter_servers", spec.parameter_servers, 1);
  if (spec.strategy == "one_device" && spec.replicas > 1) {
    fail(ErrorCode::kInvalidArgument, "strategy options: expected 1 replica for one_device, got ",
         spec.replicas, "; use mirrored");
  }
  if (spec.update_mode != "sync" && spec.strategy != "parameter_server") {
    fail(ErrorCode::kInvalidArgument, "strategy options: expected update_mode sync for ",
         spec.strategy, ", got ", spec.update_mode, "; use parameter_server");
  }
  warn_of_unused_options(spec);
}

LocalStrategyOptions local_options(const StrategySpec& spec) {
  LocalStrategyOptions local{.replicas = static_cast<int>(spec.replicas)};
  if (!spec.devices.empty()) local.devices = spec.devices;
  if (spec.cross_device_ops.empty() && spec.plugin_options.empty()) {
    local.cross_device_ops.options = communication_options(spec);
  } else {
    local.cross_device_ops = make_cross_device_ops(
        spec.cross_device_ops, communication_options(spec), spec.plugin_options);
  }
  return local;
}

std::unique_ptr<Strategy> make_multi_worker(const StrategySpec& spec) {
  MultiWorkerOptions options{.local = local_options(spec)};
  options.cluster.way = parse_way(spec.transport);
  return std::make_unique<MultiWorkerMirroredStrategy>(*resolver_from_environment(), options);
}

std::unique_ptr<Strategy> make_fully_sharded(const StrategySpec& spec) {
  FullyShardedOptions options{.local = local_options(spec),
                              .stage = static_cast<int>(spec.stage),
                              .min_shard_bytes = spec.min_shard_bytes};
  options.cluster.way = parse_way(spec.transport);
  return std::make_unique<FullyShardedStrategy>(*resolver_from_environment(), options);
}

std::unique_ptr<Strategy> make_mesh(const StrategySpec& spec) {
  MeshOptions options{.local = local_options(spec)};
  std::vector<Device>& devices = options.local.devices.devices;
  if (!spec.mesh.empty()) {
    options.mesh = DeviceMesh::parse(spec.mesh);
  } else {
    if (devices.empty()) devices = default_devices();
    options.mesh = {{"data", static_cast<int>(devices.size())}};
  }
  for (const MeshAxis& axis : options.mesh.axes()) {
    if (axis.name == "model") options.layout = transformer_tensor_parallel();
    if (axis.name == "sequence") options.sequence_axis = axis.name;
  }
  if (!spec.blocks.empty()) options.blocks = DeviceMesh::parse(spec.blocks).axes();
  options.cluster.way = parse_way(spec.transport);
  return std::make_unique<MeshStrategy>(*resolver_from_environment(), options);
}

#ifdef TUTTI_WITHOUT_GRPC
std::unique_ptr<Strategy> make_parameter_server(const StrategySpec&) {
  fail(ErrorCode::kUnimplemented,
       "strategy options: this build has no gRPC, so it has no parameter servers; build with "
       "libgrpc++-dev and protobuf-compiler-grpc, or use multi_worker_mirrored");
}
#else
std::unique_ptr<Strategy> make_parameter_server(const StrategySpec& spec) {
  ParameterServerOptions options{.local = local_options(spec)};
  options.num_servers = static_cast<int>(spec.parameter_servers);
  options.update_mode = parse_update_mode(spec.update_mode);
  options.replicas_to_aggregate = static_cast<int>(spec.replicas_to_aggregate);
  options.cluster.way = parse_way(spec.transport);
  return std::make_unique<ParameterServerStrategy>(*resolver_from_environment(), options);
}
#endif

#ifdef TUTTI_WITHOUT_XLA
std::unique_ptr<Strategy> make_tpu(const StrategySpec&) {
  fail(ErrorCode::kUnimplemented,
       "strategy options: this build does not include XLA; configure with -DTUTTI_XLA=ON, or use "
       "mirrored");
}
#else
/// Maps cpu:i to xla:i, so that flags that name CPUs need not change.
std::unique_ptr<Strategy> make_tpu(const StrategySpec& spec) {
  LocalStrategyOptions local = local_options(spec);
  for (Device& device : local.devices.devices) {
    if (device.type == DeviceType::kCpu) device.type = DeviceType::kXla;
  }
  return std::make_unique<TpuStrategy>(std::move(local));
}
#endif

}  // namespace

std::vector<std::string> strategy_names() {
  return {"one_device",
          "mirrored",
          "central_storage",
          "fully_sharded",
          "multi_worker_mirrored",
          "parameter_server",
          "mesh",
          "tpu"};
}

std::unique_ptr<Strategy> make_strategy(const StrategySpec& spec) {
  check(spec);
  if (spec.strategy == "multi_worker_mirrored") return make_multi_worker(spec);
  if (spec.strategy == "parameter_server") return make_parameter_server(spec);
  if (spec.strategy == "fully_sharded") return make_fully_sharded(spec);
  if (spec.strategy == "mesh") return make_mesh(spec);
  if (spec.strategy == "tpu") return make_tpu(spec);
  const LocalStrategyOptions local = local_options(spec);
  if (spec.strategy == "mirrored") return std::make_unique<MirroredStrategy>(local);
  if (spec.strategy == "central_storage") return std::make_unique<CentralStorageStrategy>(local);
  const std::vector<Device> devices =
      local.devices.devices.empty() ? default_devices() : local.devices.devices;
  if (!spec.devices.empty() && devices.size() > 1) {
    fail(ErrorCode::kInvalidArgument, "strategy options: expected 1 device for one_device, got ",
         devices.size(), " ('", spec.devices, "'); use mirrored");
  }
  return std::make_unique<OneDeviceStrategy>(devices.front(), communication_options(spec));
}

std::unique_ptr<Strategy> make_strategy(std::string_view name, StrategySpec spec) {
  spec.strategy = name;
  return make_strategy(spec);
}

StrategySpec strategy_spec_from_environment(StrategySpec otherwise) {
  const auto take = [](const char* name, std::string& value) {
    if (const char* text = std::getenv(name); text && *text) value = text;
  };
  take("TUTTI_STRATEGY", otherwise.strategy);
  take("TUTTI_DEVICES", otherwise.devices);
  take("TUTTI_CROSS_DEVICE_OPS", otherwise.cross_device_ops);
  return otherwise;
}

void add_strategy_flags(Flags& flags, StrategySpec& spec) {
  flags.add_choice("--strategy", spec.strategy, strategy_names(), "how training is distributed");
  flags.add("--devices", spec.devices, "names and ranges: cpu:0-3 is four virtual devices");
  flags.add("--replicas", spec.replicas, "number of replicas; 0: one per device");
  flags.add("--cross-device-ops", spec.cross_device_ops, "algorithm that sums gradients");
  flags.add("--plugin-options", spec.plugin_options,
            "options of the --cross-device-ops algorithm: k=0.01,name=value");
  flags.add_choice("--transport", spec.transport, {"auto", "shm", "tcp"},
                   "transport between workers");
  flags.add("--bytes-per-pack", spec.bytes_per_pack,
            "size of the buckets in which gradients are summed; 0: automatic");
  flags.add_choice("--compression", spec.compression, {"none", "bfloat16", "float16"},
                   "type in which gradients are sent");
  flags.add_choice("--non-finite", spec.non_finite, {"ignore", "error", "skip"},
                   "what happens when a gradient is infinite or NaN");
  flags.add("--stage", spec.stage,
            "for fully_sharded: 1 shards optimizer slots over replicas, 2 also gradients, 3 also "
            "parameters");
  flags.add("--min-shard-bytes", spec.min_shard_bytes,
            "for fully_sharded: smaller variables are mirrored");
  flags.add("--mesh", spec.mesh, "axis sizes of strategy mesh: data=2,model=2");
  flags.add("--blocks", spec.blocks,
            "block counts of mesh axes, which fix the rounding of sums; empty: one per position");
  flags.add_choice("--update-mode", spec.update_mode, {"sync", "async", "sync_replicas"},
                   "how workers of parameter servers synchronize");
  flags.add("--replicas-to-aggregate", spec.replicas_to_aggregate,
            "for sync_replicas: number of workers whose gradients form a step; 0: all");
  flags.add("--parameter-servers", spec.parameter_servers,
            "number of parameter servers in this process, if there is no cluster");
}

CommunicationOptions communication_options(const StrategySpec& spec) {
  CommunicationOptions communication;
  communication.bytes_per_pack = spec.bytes_per_pack;
  communication.compression = parse_wire_compression(spec.compression);
  communication.non_finite = parse_non_finite_policy(spec.non_finite);
  return communication;
}

}  // namespace tutti
