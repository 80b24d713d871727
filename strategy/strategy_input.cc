// How a strategy distributes input: replicas, devices and shares as a plan for DistributedDataset.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy.h"

namespace tutti {

InputPlan Strategy::input_plan(InputCut cut, InputOptions options) {
  const auto devices = replica_devices();
  const auto weights = replica_weights();
  InputPlan plan{.replica_devices = {devices.begin(), devices.end()},
                 .weights = {weights.begin(), weights.end()},
                 .cut = cut,
                 .options = options,
                 .num_replicas_in_sync = num_replicas_in_sync(),
                 .first_replica = first_replica(),
                 .num_workers = num_workers(),
                 .worker = worker()};
  complete_input_plan(plan);
  return plan;
}

DistributedDataset Strategy::distribute_dataset(const Dataset& global, InputOptions options) {
  return make_distributed_dataset(global, input_plan(InputCut::kSplit, options));
}

DistributedDataset Strategy::distribute_datasets_from_function(
    const std::function<Dataset(const InputContext&)>& fn, InputOptions options) {
  const InputContext context{.num_input_pipelines = num_workers(),
                             .input_pipeline_id = worker(),
                             .num_replicas_in_sync = num_replicas_in_sync()};
  return make_distributed_dataset(fn(context), input_plan(InputCut::kWhole, options));
}

}  // namespace tutti
