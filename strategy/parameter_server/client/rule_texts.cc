// Remembering the texts of the last rules.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/rule_texts.h"

#include <algorithm>

#include "tutti/optimizer/update_rule_spec.h"

namespace tutti::internal {

SharedText RuleTexts::of(const UpdateRule& rule) {
  constexpr std::size_t kMostTexts = 16;
  MutexLock lock(mutex_);
  const auto known =
      std::ranges::find(texts_, rule.number(), [](const auto& each) { return each.first; });
  if (known != texts_.end()) return known->second;
  if (texts_.size() == kMostTexts) texts_.pop_front();
  return texts_.emplace_back(rule.number(), describe_update_rule(rule)).second;
}

}  // namespace tutti::internal
