// MirroredStrategy: a LocalStrategy with its options.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mirrored_strategy.h"

#include <utility>

#include "strategy/local_options.h"

namespace tutti {

MirroredStrategy::MirroredStrategy(LocalStrategyOptions options)
    : LocalStrategy("mirrored", internal::checked_for_workers(std::move(options))) {}

}  // namespace tutti
