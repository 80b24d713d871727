// Round-robin, or by bytes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server_picker.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {

std::ostream& operator<<(std::ostream& out, VariablePlacement placement) {
  return out << (placement == VariablePlacement::kRoundRobin ? "round_robin" : "least_bytes");
}

namespace internal {

ServerPicker::ServerPicker(VariablePlacement placement, int num_servers) : placement_(placement) {
  if (num_servers < 1) {
    fail(ErrorCode::kInvalidArgument,
         "ParameterServerStrategy: there must be at least one ps, got ", num_servers);
  }
  bytes_.resize(static_cast<std::size_t>(num_servers), 0);
}

int ServerPicker::next(std::size_t num_bytes) {
  auto chosen = static_cast<std::size_t>(next_);
  if (placement_ == VariablePlacement::kLeastBytes) {
    chosen = static_cast<std::size_t>(std::ranges::min_element(bytes_) - bytes_.begin());
  }
  next_ = (next_ + 1) % static_cast<int>(bytes_.size());
  bytes_[chosen] += num_bytes;
  return static_cast<int>(chosen);
}

}  // namespace internal
}  // namespace tutti
