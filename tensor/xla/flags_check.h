// Whether a plugin can read the flags of the environment, which it ends the process for otherwise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace tutti::internal {

/// Where XLA_FLAGS is set, a child process calls `create`, which makes the plugin read it. Throws
/// kInvalidArgument with the plugin's words when that ends the child. A child that has not ended
/// after 30 s is ended, and nothing said.
void check_xla_flags(const std::function<void()>& create);

}  // namespace tutti::internal
