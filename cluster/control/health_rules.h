// Rules for silent, gone and stuck members, on what the server knows, without any wire or clock.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/control/control_server.h"
#include "cluster/control/member.h"
#include "core/process_probe.h"

namespace tutti::internal {

/// What a process says of itself when it joins.
struct JoiningProcess {
  Member who;
  std::uint64_t start_time = 0;  // tells it from a later one with its pid
  std::string machine;           // equal where process numbers mean the same
  std::string process;           // unique: a new connection of the same process goes on
};

/// What the server knows of a process that has joined.
struct MemberRecord {
  enum class Status { kHere, kLeft, kGivenUp };
  std::uint64_t number = 0;  // of joining
  JoiningProcess joined;
  std::string numerics;
  Status status = Status::kHere;
  bool is_connected = true;
  bool has_failed = false;  // reported an error: its end is no news
  TimePoint last_heard;     // or of a pause of the server itself
  TimePoint disconnected_at;
  MemberProgress progress;
  TimePoint progress_at;
  bool has_stood_still = false;  // the last two reports name the same calls
  std::set<std::pair<std::string, std::uint64_t>> warned, aborted;  // (group, collective)
};

/// Asks the system about a member's process; kUnknown for those of other machines.
using ProcessProbe = std::function<ProcessState(const JoiningProcess&)>;

struct Finding {
  std::uint64_t number = 0;  // of the record
  VerdictKind kind = VerdictKind::kDead;
  bool is_fatal = true;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string message;
};

/// How long a process in this state may say nothing.
Duration longest_silence(const ProcessState& state, Duration silent_after,
                         Duration unreachable_after);

/// Judges a member that is here: dead, stopped, or nothing wrong with it. On this machine silence
/// alone is no evidence: a process of which a thread runs or waits for a processor is alive.
std::optional<Finding> judge_silence(const MemberRecord& record, TimePoint now,
                                     const HealthOptions& options, const ProcessProbe& probe);

/// Members that do not come where others of their group wait. Notes in the records what was found,
/// so that it is found once.
std::vector<Finding> find_stuck(const std::vector<MemberRecord*>& records, TimePoint now,
                                const HealthOptions& options);

/// Whether both name the same calls. A report shows its groups at slightly different moments, so
/// one alone may show a state that never was.
bool has_same_calls(const MemberProgress& a, const MemberProgress& b);

/// Members of which each waits in a collective that others of them have not begun, while these wait
/// in another one: none of them will ever come, since all make the same calls in the same order.
/// A member that computes, or is still within an older call of the group, does not count. One
/// finding, of all of them, noted in the records.
std::optional<Finding> find_deadlock(const std::vector<MemberRecord*>& records, TimePoint now);

/// "1.5".
std::string seconds_text(Duration duration);

}  // namespace tutti::internal
