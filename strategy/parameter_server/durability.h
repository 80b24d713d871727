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
  /// All servers go back to the last cut, and closures that finished since are done again.
  kSnapshot = 1,
  /// Each server writes every change into a file before it confirms it. One that is started again
  /// has all that it confirmed, and the others keep what they have.
  kLogged = 2,
  /// Each server has the next one apply every change, too, before it confirms it. One that is
  /// started again gets all of it from there, and the others keep what they have. If more is lost
  /// (its copy, too, or the coordinator), as kSnapshot.
  kReplicated = 3,
};
/// "none", "snapshot", "logged", "replicated".
std::string to_string(Durability durability);
std::ostream& operator<<(std::ostream& out, Durability durability);
/// Throws kInvalidArgument listing them.
Durability parse_durability(const std::string& text);

namespace internal {
/// Throws kInvalidArgument unless servers of this number can keep it: processes of a coordinated
/// job; kUnimplemented for servers that are no processes, beyond kSnapshot.
void check_durability(Durability durability, bool is_coordinated, bool are_processes,
                      int num_servers);
}  // namespace internal

}  // namespace tutti
