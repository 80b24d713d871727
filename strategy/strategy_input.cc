// How a strategy distributes input: replicas, devices and shares as a plan for DistributedDataset.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy.h"

namespace tutti {
namespace {

InputPlan plan_for(const Strategy& strategy, InputCut cut, InputOptions options) {
  const auto devices = strategy.replica_devices();
  const auto weights = strategy.replica_weights();
  return {.replica_devices = {devices.begin(), devices.end()},
          .weights = {weights.begin(), weights.end()},
          .cut = cut,
          .options = options};
}

}  // namespace

DistributedDataset Strategy::distribute_dataset(const Dataset& global, InputOptions options) {
  return make_distributed_dataset(global, plan_for(*this, InputCut::kSplit, options));
}

DistributedDataset Strategy::distribute_datasets_from_function(
    const std::function<Dataset(const InputContext&)>& fn, InputOptions options) {
  const InputContext context{.num_input_pipelines = 1,
                             .input_pipeline_id = 0,
                             .num_replicas_in_sync = num_replicas_in_sync()};
  return make_distributed_dataset(fn(context), plan_for(*this, InputCut::kWhole, options));
}

}  // namespace tutti
