// Implements FullyShardedStrategy: decides which variables are sharded across the replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/fully_sharded_strategy.h"

#include <algorithm>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/strategy_options.h"
#include "strategy/variables/fully_sharded_variable.h"

namespace tutti {
namespace {

constexpr const char* kStrategy = "fully_sharded";

int checked_stage(int stage) {
  if (stage >= 1 && stage <= 3) return stage;
  fail(ErrorCode::kInvalidArgument, kStrategy,
       ": stage: expected 1 (shards slots), 2 (also gradients) or 3 (also parameters), got ",
       stage);
}

std::int64_t checked_bytes(std::int64_t bytes) {
  if (bytes >= 0) return bytes;
  fail(ErrorCode::kInvalidArgument, kStrategy, ": min_shard_bytes: expected >= 0, got ", bytes);
}

}  // namespace

FullyShardedStrategy::FullyShardedStrategy(FullyShardedOptions options)
    : FullyShardedStrategy(internal::TeamSetup{.options = options.local}, options) {}

FullyShardedStrategy::FullyShardedStrategy(std::unique_ptr<Communicator> communicator,
                                           FullyShardedOptions options)
    : FullyShardedStrategy(internal::join_team(kStrategy, std::move(communicator), options.local),
                           options) {}

FullyShardedStrategy::FullyShardedStrategy(internal::TeamSetup setup,
                                           const FullyShardedOptions& options)
    : Strategy(kStrategy, std::move(setup.options), setup.team),
      team_(std::move(setup.team)),
      reads_(team_ ? std::make_shared<internal::ReadAhead>(team_) : nullptr),
      stage_(checked_stage(options.stage)),
      reshard_after_forward_(options.reshard_after_forward),
      min_shard_bytes_(checked_bytes(options.min_shard_bytes)) {
  const std::vector<Device> devices(replica_devices().begin(), replica_devices().end());
  Placement placement =
      Placement::central(devices, devices.front(), first_replica(), num_replicas_in_sync());
  if (num_workers() > 1) placement.check = team_->check();
  placement_ = std::make_shared<const Placement>(std::move(placement));
  if (team_) team_->allow_restart();
}

bool FullyShardedStrategy::is_cut(const Tensor& initial_value,
                                  const VariableOptions& options) const {
  const bool has_copies = options.on_host || options.allow_divergent;
  return !has_copies && num_replicas_in_sync() > 1 &&
         static_cast<std::int64_t>(initial_value.num_bytes()) >= min_shard_bytes_;
}

void FullyShardedStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (team_) {
    team_->require_connection();  // checked before replicas make concurrent calls
    reads_->begin_run();
  }
  extended().run(body);
}

std::shared_ptr<VariableStorage> FullyShardedStrategy::create_storage(const Tensor& initial_value,
                                                                      VariableOptions options) {
  if (team_ && team_->is_connected()) {
    internal::require_same_variable(kStrategy, *team_,
                                    internal::describe_variable(options.name, initial_value));
  }
  if (extended().is_on_read(options) || !is_cut(initial_value, options)) {
    return extended().create_storage(initial_value, std::move(options));
  }
  const internal::ShardUse use{.keeps_whole = stage_<3, .sums_shards = stage_> 1,
                               .reads_again = stage_ == 3 && reshard_after_forward_,
                               .team = team_,
                               .reads = reads_};
  return std::make_shared<internal::FullyShardedStorage>(
      initial_value, options, static_cast<const Strategy*>(this), placement_,
      extended().next_work_number(initial_value.num_bytes()), use);
}

}  // namespace tutti
