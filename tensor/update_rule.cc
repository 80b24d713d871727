// Numbers of rules, and what a rule that describes itself to nobody answers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/update_rule.h"

#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

/// Servers make a rule for each update and never ask: only who asks pays for a number.
std::uint64_t UpdateRule::number() const {
  static std::atomic<std::uint64_t> last{0};
  std::uint64_t number = number_.load();
  if (number != 0) return number;
  const std::uint64_t own = ++last;
  return number_.compare_exchange_strong(number, own) ? own : number;
}

std::optional<DeviceRule> UpdateRule::device_rule(const UpdateScalars&) const {
  return std::nullopt;
}

Json UpdateRule::describe() const {
  fail(
      ErrorCode::kUnimplemented, "UpdateRule '", name(),
      "': this rule cannot be sent to where the variable lives, for it does not say what it is; "
      "expected a describe() of its own; try adding one, and register_update_rule() in every task");
}

}  // namespace tutti
