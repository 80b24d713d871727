// How far a process has come: what its heartbeats tell.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/sync.h"

namespace tutti {

/// Of one group of ranks. Its members make the same calls in the same order, so counts compare.
struct GroupProgress {
  std::string group;           // equal on all members of the group
  std::uint64_t entered = 0;   // collectives begun so far
  std::uint64_t finished = 0;  // of those, ended
  std::string call;            // of the last one: "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7"
  Duration since{};            // since it began, or ended when all are finished
  bool operator==(const GroupProgress&) const = default;
};

struct MemberProgress {
  std::uint64_t step = 0;  // that runs or has been finished last
  std::string phase;       // "training", "saving", "evaluating"
  std::vector<GroupProgress> groups;
  bool operator==(const MemberProgress&) const = default;
};

/// Holds the parts of a MemberProgress that others set, for the thread that sends heartbeats: all
/// answer at once. Threads: any.
class ProgressBoard {
 public:
  void set_step(std::uint64_t step);
  void set_phase(std::string_view phase);
  /// Asks `source` for a group's progress from now on; empty: no longer, and what it says now is
  /// told on as this process's last calls in the group. After the call returned the old source is
  /// not asked any more. A group that is built anew gets a new name ("all/2"), equal on all
  /// members.
  void watch(const std::string& group, std::function<GroupProgress()> source);
  /// Tells no more of groups that are not watched any longer.
  void forget_ended();
  MemberProgress progress();

 private:
  Mutex mutex_;
  std::uint64_t step_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::string phase_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::function<GroupProgress()>> sources_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, GroupProgress> ended_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
