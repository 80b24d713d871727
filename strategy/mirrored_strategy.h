// Synchronous training on the devices of one machine: variables mirrored on all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/strategy/local_strategy.h"

namespace tutti {

/// Every device holds a copy of every variable; gradients are summed over replicas by
/// CrossDeviceOps and each copy is updated from equal values: mirrored variables stay
/// bit-identical. tf.distribute.MirroredStrategy.
class MirroredStrategy final : public LocalStrategy {
 public:
  /// Throws kInvalidArgument for duplicate devices, kUnavailable for a device that is not here.
  explicit MirroredStrategy(LocalStrategyOptions options = {});
  ~MirroredStrategy() override;
  std::string_view name() const override { return "mirrored"; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;

 private:
  std::shared_ptr<const Placement> placement_;
};

}  // namespace tutti
