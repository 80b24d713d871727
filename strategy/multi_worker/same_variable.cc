// Comparing descriptions of a new variable.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker/same_variable.h"

#include <vector>

#include "tutti/core/hash.h"

namespace tutti::internal {

std::string describe_variable(const std::string& name, const Tensor& initial_value) {
  const Tensor on_host = initial_value.to(Device{});
  Hasher hasher;
  hasher.update(on_host.bytes());
  return concat("'", name, "' ", initial_value.dtype(), " ", initial_value.shape(), ", values ",
                hasher.hex_digest());
}

void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description) {
  const std::vector<std::string> all = team.gather_texts(description, "create a variable");
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w] == all[0]) continue;
    fail(ErrorCode::kInvalidArgument, who, ": the workers make different variables: worker 0 ",
         all[0], "; worker ", w, " ", all[w],
         "; expected the same variables in the same order with the same initial values; try the "
         "same program and seed on all workers");
  }
}

}  // namespace tutti::internal
