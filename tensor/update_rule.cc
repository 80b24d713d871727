// Numbers of rules, and what a rule that describes itself to nobody answers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/update_rule.h"

#include <atomic>

#include "tutti/core/json.h"

namespace tutti {

std::uint64_t UpdateRule::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Json UpdateRule::describe() const {
  fail(
      ErrorCode::kUnimplemented, "UpdateRule '", name(),
      "': this rule cannot be sent to where the variable lives, for it does not say what it is; "
      "expected a describe() of its own; try adding one, and register_update_rule() in every task");
}

}  // namespace tutti
