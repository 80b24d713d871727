// Implements CentralStorageStrategy: chooses the device of its variables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/central_storage_strategy.h"

#include <utility>

#include "strategy/strategy_options.h"

namespace tutti {
namespace {

Device parameter_device_for(const CentralStorageStrategy& strategy,
                            const std::optional<Device>& named) {
  if (named) {
    require_available(*named);
    return *named;
  }
  const std::vector<Device> devices = strategy.worker_devices();
  const bool is_one_gpu = devices.size() == 1 && devices.front().type == DeviceType::kGpu;
  return is_one_gpu ? devices.front() : Device{};
}

}  // namespace

CentralStorageStrategy::CentralStorageStrategy(CentralStorageOptions options)
    : Strategy("central_storage", internal::checked_for_workers(std::move(options.local))),
      parameter_device_(parameter_device_for(*this, options.parameter_device)) {
  const auto devices = replica_devices();
  placement_ = std::make_shared<const Placement>(
      Placement::central({devices.begin(), devices.end()}, parameter_device_));
}

std::shared_ptr<VariableStorage> CentralStorageStrategy::create_storage(const Tensor& initial_value,
                                                                        VariableOptions options) {
  return extended().create_storage(initial_value, std::move(options), placement_);
}

void CentralStorageStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  extended().run(body);
}

}  // namespace tutti
