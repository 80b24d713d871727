// Members of a job: how far one has come, what was found out about it, and by which rules.
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

/// A task of the cluster: "worker 2" at the address that TF_CONFIG gives it.
struct MemberTask {
  std::string job = "worker";  // chief, worker, ps, evaluator; 1 to 15 lower-case letters
  int index = 0;
  std::string address = {};  // "host:port"; for messages
  /// "worker 2".
  std::string to_string() const;
  bool same_task(const MemberTask& other) const { return job == other.job && index == other.index; }
  bool operator==(const MemberTask&) const = default;
};

/// A process that has joined as a task.
struct Member {
  MemberTask task = {};
  std::uint64_t incarnation = 0;  // restarts of the task before this process
  std::string host = {};          // name of its machine
  std::int64_t pid = 0;
  bool is_here = false;  // joined, and neither gone nor given up
  /// "worker 2 (127.0.0.1:4713, pid 812)"; the machine's name too when it is not this one.
  std::string to_string() const;
  bool operator==(const Member&) const = default;
};

enum class VerdictKind : std::uint8_t {
  kDead = 1,          // its connection closed and it did not come back
  kStopped = 2,       // it is there and says nothing
  kStuck = 3,         // it says something, but does not come where the others wait
  kFailed = 4,        // it reported an error of its own
  kLeft = 5,          // it left in good order
  kJoined = 6,        // it came, or came back as a new process
  kDisconnected = 7,  // it lost its connection to another member; both are here
};
std::string_view to_string(VerdictKind kind);

/// One finding. Every member gets all of them, in the order of their numbers.
struct Verdict {
  std::uint64_t number = 0;  // 1, 2, 3, ... per job
  VerdictKind kind = VerdictKind::kDead;
  Member who;
  /// Whether the collectives of a group with this member end. A warning that it is stuck, joining
  /// and leaving end none.
  bool is_fatal = false;
  ErrorCode code = ErrorCode::kUnavailable;
  /// "worker 2 (127.0.0.1:4713, pid 812) died: its connection closed and the process is gone".
  std::string message;
  /// Whether a group can go on only without this member, or with a new process of its task. A
  /// connection that broke is fatal, too, but its ends are well.
  bool loses_member() const { return is_fatal && kind != VerdictKind::kDisconnected; }
  bool operator==(const Verdict&) const = default;
};

/// What to give to Transport::abort().
Error to_error(const Verdict& verdict);

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

namespace tutti::internal {

// Rules for silent, gone and stuck members, on what the server knows, without any wire or clock.

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

}  // namespace tutti::internal
