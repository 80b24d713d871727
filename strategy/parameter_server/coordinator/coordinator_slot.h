// Where the coordinators of a strategy find each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/closure_event.h"
#include "tutti/strategy/parameter_server/coordinator/coordinated_strategy.h"

namespace tutti {

struct CoordinatedStrategy::CoordinatorSlot {
  Mutex mutex;
  std::weak_ptr<void> coordinator TUTTI_GUARDED_BY(mutex);
  /// How far the coordinators came that there were: what servers heard of them goes on to count.
  internal::events::BeganAfter former TUTTI_GUARDED_BY(mutex);
};

}  // namespace tutti
