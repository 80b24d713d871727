// What servers are told of update rules, written once for each rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// An optimizer updates all of its variables by the same rule, in every step: they share one text.
/// Threads: any.
class RuleTexts {
 public:
  /// describe_update_rule(rule). Throws as it does.
  SharedText of(const UpdateRule& rule);

 private:
  Mutex mutex_;
  // By UpdateRule::number(), the latest last: an optimizer has up to three rules.
  std::deque<std::pair<std::uint64_t, SharedText>> texts_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
