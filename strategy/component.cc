// Updates of a component in memory of this process.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/component.h"

#include <vector>

namespace tutti::internal {

void LocalComponent::update(std::span<Component* const> slots, const UpdateRule& rule,
                            const Gradient& gradient, const UpdateScalars& scalars) {
  std::vector<VariableComponent*> memory;
  for (Component* slot : slots) {
    auto* local = dynamic_cast<LocalComponent*>(slot);
    TUTTI_CHECK(local, "LocalComponent::update: a slot elsewhere than its variable");
    memory.push_back(&local->component_);
  }
  VariableComponent::update(component_, memory, rule, gradient, scalars);
}

}  // namespace tutti::internal
