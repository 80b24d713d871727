// What a strategy whose workers are threads leaves as it is.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/coordinated_strategy.h"

#include "tutti/strategy/parameter_server/coordinator/coordinator_slot.h"
#include "tutti/strategy/parameter_server/coordinator/worker_link.h"

namespace tutti {

CoordinatedStrategy::CoordinatedStrategy() : slot_(std::make_unique<CoordinatorSlot>()) {}
CoordinatedStrategy::~CoordinatedStrategy() = default;

std::unique_ptr<internal::WorkerLink> CoordinatedStrategy::connect_worker(int,
                                                                          internal::StepRegistry&) {
  return nullptr;
}

}  // namespace tutti
