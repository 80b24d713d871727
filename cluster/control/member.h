// Members of a job, their progress, verdicts on them, and the rules of failure detection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/process_probe.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {

/// A task of the cluster, such as "worker 2", with its address from TF_CONFIG.
struct MemberTask {
  std::string job = "worker";  // such as chief, worker, ps, evaluator
  int index = 0;
  std::string address = {};  // "host:port"; for messages
  std::string to_string() const;
  bool same_task(const MemberTask& other) const { return job == other.job && index == other.index; }
  bool operator==(const MemberTask&) const = default;
};

/// A task of the job, and the process that runs it (pid 0 if no process has joined as this task).
struct Member {
  MemberTask task = {};
  std::uint64_t incarnation = 0;  // number of restarts of the task before this process
  std::string host = {};          // name of its machine
  std::int64_t pid = 0;
  bool is_here = false;  // true if it has joined and has neither left nor been given up on
  /// Returns "worker 2 (127.0.0.1:4713, pid 812)", plus the machine's name if it is another
  /// machine.
  std::string to_string() const;
  bool operator==(const Member&) const = default;
};

/// Kind of a verdict on a member ("it").
enum class VerdictKind : std::uint8_t {
  kDead = 1,          // its process exited, or its connection was lost
  kStopped = 2,       // it is silent, but its process is not known to have exited
  kStuck = 3,         // it is alive, but other members wait for it in a collective
  kFailed = 4,        // it reported an error
  kLeft = 5,          // it left normally
  kJoined = 6,        // it joined, possibly as a restarted process
  kDisconnected = 7,  // it lost its connection to another member; both are alive
};
std::string_view to_string(VerdictKind kind);

/// A finding about a member. Every member receives all verdicts, in numerical order.
struct Verdict {
  std::uint64_t number = 0;  // 1, 2, 3, ... per job
  VerdictKind kind = VerdictKind::kDead;
  Member who;
  /// True if the verdict ends the collectives of groups that contain this member. False for
  /// joining, leaving, and warnings about a stuck member.
  bool is_fatal = false;
  ErrorCode code = ErrorCode::kUnavailable;
  /// Message such as "worker 2 (127.0.0.1:4713, pid 812) died: its connection closed and the
  /// process has exited".
  std::string message;
  /// Returns true if a group can continue only without this member or with a new process of its
  /// task. False for a broken connection: it is fatal, but both of its ends are alive.
  bool loses_member() const { return is_fatal && kind != VerdictKind::kDisconnected; }
  bool operator==(const Verdict&) const = default;
};

/// Returns the error to pass to Transport::abort().
Error to_error(const Verdict& verdict);

/// Progress in one group of ranks. Its members make the same calls in the same order, so counts are
/// comparable.
struct GroupProgress {
  std::string group;           // name; equal on all members of the group
  std::uint64_t entered = 0;   // collectives entered so far
  std::uint64_t finished = 0;  // collectives finished so far
  std::string call;            // latest call: "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7"
  Duration since{};            // time since `call` ended, or since it began if it is still running
  bool operator==(const GroupProgress&) const = default;
};

struct MemberProgress {
  std::uint64_t step = 0;  // the current step; between steps, the last finished one
  std::string phase;       // "training", "saving", "evaluating"
  std::vector<GroupProgress> groups;
  bool operator==(const MemberProgress&) const = default;
};

/// Collects this process's progress for the thread that sends heartbeats. Thread-safe.
class ProgressTracker {
 public:
  void set_step(std::uint64_t step);
  void set_phase(std::string_view phase);
  /// Sets the source of a group's progress. An empty source ends watching; the old source's values
  /// are kept as the last calls of this process in the group. The old source is not called after
  /// watch() returns. A group that is rebuilt must get a new name ("all/2") that is equal on all
  /// members.
  void watch(const std::string& group, std::function<GroupProgress()> source);
  /// Discards the kept values of groups that are no longer watched.
  void remove_ended();
  MemberProgress progress();

 private:
  Mutex mutex_;
  std::uint64_t step_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::string phase_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::function<GroupProgress()>> sources_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, GroupProgress> ended_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti

namespace tutti::internal {

// Rules that detect silent, lost and stuck members, independently of transport and clock.

/// Description that a process sends when it joins.
struct JoiningProcess {
  Member who;
  std::uint64_t start_time = 0;  // distinguishes processes with the same pid
  std::string machine;           // equal for processes with comparable pids
  std::string process;           // unique; identifies a reconnecting process
};

/// The server's record of a process that has joined.
struct MemberRecord {
  enum class Status { kHere, kLeft, kGivenUp };
  std::uint64_t number = 0;  // numbered in the order in which processes joined
  JoiningProcess joined;
  std::string numerics;
  Status status = Status::kHere;
  bool is_connected = true;
  bool has_failed = false;  // the member reported an error, so its exit is not reported
  TimePoint last_heard;     // time of the last message, plus the server's own pauses
  TimePoint disconnected_at;
  MemberProgress progress;
  TimePoint progress_at;
  bool has_stood_still = false;  // true if the last two reports have equal call counts
  // Collectives for which a finding was returned: (group, number of the collective).
  std::set<std::pair<std::string, std::uint64_t>> warned, aborted;
};

/// Returns the state of a member's process; kUnknown if it runs on another machine.
using ProcessProbe = std::function<ProcessState(const JoiningProcess&)>;

struct Finding {
  std::uint64_t number = 0;  // number of the member's record
  VerdictKind kind = VerdictKind::kDead;
  bool is_fatal = true;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string message;
};

/// Returns the longest tolerated silence of a process in this state.
Duration longest_silence(const ProcessState& state, Duration silent_after,
                         Duration unreachable_after);

/// Returns a finding if the member is dead or stopped. For a process on this machine, silence alone
/// is not sufficient, because a process with a thread that runs or waits for a processor is alive.
std::optional<Finding> judge_silence(const MemberRecord& record, TimePoint now,
                                     const HealthOptions& options, const ProcessProbe& probe);

/// Finds members that other members of a group are waiting for in a collective. Records each
/// finding, so that it is returned only once.
std::vector<Finding> find_stuck(const std::vector<MemberRecord*>& records, TimePoint now,
                                const HealthOptions& options);

/// Returns true if `a` and `b` have equal call counts in all groups. The groups in a report are
/// read at slightly different times, so a single report may show a state that never existed.
bool has_same_calls(const MemberProgress& a, const MemberProgress& b);

/// Finds deadlocks: sets of members that each wait in a collective that another member has not
/// entered, because it waits in a different collective. None of them can continue, because all must
/// make the same calls in the same order. Ignores members that compute or are still in an older
/// call of the group. Returns one finding for all of the members, and records it.
std::optional<Finding> find_deadlock(const std::vector<MemberRecord*>& records, TimePoint now);

}  // namespace tutti::internal
