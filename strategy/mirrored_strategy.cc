// MirroredStrategy: which storage its variables have.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mirrored_strategy.h"

namespace tutti {

MirroredStrategy::MirroredStrategy(LocalStrategyOptions options)
    : LocalStrategy("mirrored", std::move(options)) {
  const auto devices = replica_devices();
  placement_ =
      std::make_shared<const Placement>(Placement::mirrored({devices.begin(), devices.end()}));
}

MirroredStrategy::~MirroredStrategy() = default;

std::shared_ptr<VariableStorage> MirroredStrategy::create_storage(const Tensor& initial_value,
                                                                  VariableOptions options) {
  if (is_on_read(options)) return create_on_read_storage(initial_value, std::move(options));
  return create_mirrored_storage(initial_value, std::move(options), placement_);
}

}  // namespace tutti
