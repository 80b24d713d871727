// How often the kernel has killed a process for memory, as far as it tells.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace tutti::launch {

/// Counts kills in the control group of this process (versions 1 and 2), or on the whole machine
/// where groups do not tell.
class OomCounter {
 public:
  OomCounter();
  /// Kills since the last call, or since construction.
  long take_new_kills();
  /// "cgroup oom_kill +1", or "oom_kill +1 on this machine".
  std::string describe(long kills) const;

 private:
  std::optional<long> read() const;

  std::string file_;  // with a line "oom_kill N"; empty: none
  bool of_cgroup_ = false;
  long last_ = 0;
};

}  // namespace tutti::launch
