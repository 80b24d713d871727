// What a coordinator's job does so that a server process that dies takes nothing along.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace tutti {

/// With a ClusterCoordinator whose SnapshotOptions name a folder. The same on all tasks.
enum class Durability : std::uint8_t {
  /// A server process that is lost ends the run.
  kNone = 0,
  /// Each server writes every change into a file before it confirms it. One that is started again
  /// has all that it confirmed, and the others keep what they have. A lost disk is lost:
  /// checkpoints are for that.
  kLogged = 1,
};
/// "none", "logged".
std::string to_string(Durability durability);
std::ostream& operator<<(std::ostream& out, Durability durability);
/// Throws kInvalidArgument listing them.
Durability parse_durability(const std::string& text);

}  // namespace tutti
