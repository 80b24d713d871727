// Where the replicas of one run meet: collectives, merge calls, failures; the lock they wait on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/core/source_location.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// Replicas and the thread that called run() meet here. In sequential mode a replica goes on only
/// when it has the turn; it hands the turn to the next replica (cyclic order) that can go on when
/// it waits or ends.
class ReplicaMonitor {
 public:
  ReplicaMonitor(int num_replicas, bool sequential)
      : sequential_(sequential && num_replicas > 1),
        seats_(static_cast<std::size_t>(num_replicas)) {}

  Mutex& mutex() TUTTI_THREAD_ANNOTATION(lock_returned(mutex_)) { return mutex_; }
  /// For conditions, which wait() calls with the mutex held: tells the thread-safety analysis.
  void assert_held() const TUTTI_THREAD_ANNOTATION(assert_capability(mutex_)) {}

  /// Waits until `ready()` or the deadline; returns ready(). Called by replica `replica` between
  /// enter() and leave().
  bool wait(int replica, TimePoint deadline, const std::function<bool()>& ready)
      TUTTI_REQUIRES(mutex_);
  /// The same for the thread that called run(), and for replica threads between runs.
  void wait_as_caller(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);
  void wait_idle(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);

  /// Something that a replica waits for has changed.
  void notify_replicas() TUTTI_REQUIRES(mutex_);
  void notify_caller() { caller_.notify_all(); }

  /// The caller of run() announces that all replicas begin or, parked, take up a nested body:
  /// replica 0 has the first turn.
  void begin(bool outermost) TUTTI_REQUIRES(mutex_);
  /// A replica starts its body, and ends it.
  void enter(int replica) TUTTI_REQUIRES(mutex_);
  void leave(int replica) TUTTI_REQUIRES(mutex_);
  /// A replica hands the turn on; its next wait() takes it up again.
  void yield(int replica) TUTTI_REQUIRES(mutex_);
  /// A replica that yielded goes on where it was before the nested body.
  void resume(int replica) TUTTI_REQUIRES(mutex_);

 private:
  struct Seat {
    bool active = false;
    const std::function<bool()>* ready = nullptr;  // nullptr: can go on
  };
  void pass_turn() TUTTI_REQUIRES(mutex_);
  bool wait_for_turn(int replica, TimePoint deadline) TUTTI_REQUIRES(mutex_);

  const bool sequential_;
  Mutex mutex_;
  CondVar replicas_;
  CondVar caller_;
  std::vector<Seat> seats_ TUTTI_GUARDED_BY(mutex_);
  int turn_ TUTTI_GUARDED_BY(mutex_) = kNobody;
  int last_turn_ TUTTI_GUARDED_BY(mutex_) = kNobody;
  static constexpr int kNobody = -1;
};

enum class MeetingKind {
  kMergeCall,
  kAllReduce,
  kAllGather,
  kAssign,
  kScatter,
  kAggregateRead,
  kCompareGradients,
  kFinishGradients,
  kUpdatesDone,
};

/// Dtype, shape and kind of one value that takes part.
struct ValueSpec {
  DType dtype = DType::kFloat32;
  Shape shape;
  bool sparse = false;
  bool operator==(const ValueSpec&) const = default;
};
ValueSpec spec_of(const Gradient& value);

/// The header of a meeting: equal in all replicas but for the call site, else the meeting is a
/// mismatch.
struct MeetingHeader {
  MeetingKind kind = MeetingKind::kMergeCall;
  ReduceOp op = ReduceOp::kSum;
  int axis = 0;
  int method = 0;                             // AssignOp or ScatterOp
  const VariableStorage* variable = nullptr;  // what is written or read
  const std::type_info* type = nullptr;       // of a merge_call's argument
  std::vector<ValueSpec> values = {};
  SourceLocation where = {};

  /// Lengths along the axis of an all_gather may differ.
  bool matches(const MeetingHeader& other) const;
  /// "all_reduce", "Variable 'w'.assign_add".
  std::string call() const;
  /// "all_reduce(SUM, float32 [2, 3])", "all_gather(axis 0, float32 [*, 3])": what workers compare.
  std::string signature() const;
  /// "all_reduce(SUM, float32 [2, 3]) at step.cc:41"; with all lengths.
  std::string describe() const;

 private:
  std::string text(bool has_all_lengths) const;
};

/// Work that a replica does while it waits in a meeting: slices of gradients, a nested run's body.
class IdleWork {
 public:
  virtual ~IdleWork() = default;
  /// Called with the monitor's mutex held.
  virtual bool available() = 0;
  /// Called without it.
  virtual void work() = 0;
};

/// Where the replicas of a run are: replica 0 on the thread that called run(), the others on their
/// own; the same threads inside a merge call; or (one replica) the caller's thread alone.
enum class RunPlace { kReplicaThreads, kNested, kCaller };

/// How a run ended.
struct RunOutcome {
  std::exception_ptr error;  // what run() throws; nullptr: every replica succeeded
  int replica = -1;          // whose error it is; -1: of none alone
  std::vector<std::string> messages;
  bool failed_in_update = false;
};

/// The meetings of one run, one after the other. The last replica to arrive compares the headers
/// and is the leader: it runs the action alone while the others sleep (a merge call's action is run
/// by replica 0, on the thread that called run()). If anything fails the run is aborted: every
/// replica that waits or arrives later gets kAborted.
class Rendezvous {
 public:
  /// One pointer per replica: what it passed to meet().
  using Action = std::function<void(std::span<void* const> arguments)>;

  Rendezvous(ReplicaMonitor& monitor, int num_replicas, Duration timeout, RunPlace place);

  int num_replicas() const { return num_replicas_; }
  ReplicaMonitor& monitor() { return monitor_; }

  /// Waits for all replicas, has `action` run once, returns in all of them. `argument` must live
  /// until then. Throws what `action` threw (in every replica), kAborted, or kDeadlineExceeded
  /// naming the replicas that did not come.
  void meet(int replica, MeetingHeader header, void* argument, const Action& action,
            IdleWork* idle = nullptr);

  /// For the action of a meeting, and for work: waits until `ready()`, throws kAborted when the run
  /// was aborted.
  void wait(int replica, const std::function<bool()>& ready, std::string_view what);
  /// Waits until `ready()`, but not while another replica waits in a meeting, has ended or, all of
  /// them, holds back: no order of calls can make it wait for ever. Whether ready(); throws
  /// kAborted when the run was aborted.
  bool hold_back(int replica, const std::function<bool()>& ready);
  /// Throws kAborted when the run was aborted.
  void check(int replica);
  /// The body of `replica` ended, with an exception or (nullptr) without.
  void ended(int replica, std::exception_ptr error);

  /// For the caller of run(): waits until all replicas have ended.
  void wait_for_end();
  RunOutcome outcome();

 private:
  struct Seat {
    bool present = false;
    bool ended = false;
    bool saw_abort = false;
    MeetingHeader header;
    void* argument = nullptr;
    std::exception_ptr failure;  // of the last meeting's action
    std::exception_ptr error;    // that ended the body
  };

  Seat& seat(int replica) TUTTI_REQUIRES(monitor_.mutex()) {
    return seats_[static_cast<std::size_t>(replica)];
  }
  void arrive(int replica, MeetingHeader header, void* argument) TUTTI_REQUIRES(monitor_.mutex());
  void all_are_here(int replica) TUTTI_REQUIRES(monitor_.mutex());
  enum class Woken { kCompleted, kLeads, kIdleWork };
  /// `arguments`: of all, for the one who leads.
  Woken wait_for_others(int replica, IdleWork* idle, std::vector<void*>& arguments)
      TUTTI_REQUIRES(monitor_.mutex());
  bool leads(int replica) const TUTTI_REQUIRES(monitor_.mutex()) {
    return in_action_ && leader_ == replica && !action_taken_;
  }
  void withdraw(int replica) TUTTI_REQUIRES(monitor_.mutex());
  void run_action(const Action& action, std::span<void* const> arguments);
  void complete(std::exception_ptr failure) TUTTI_REQUIRES(monitor_.mutex());
  void abort(Error reason) TUTTI_REQUIRES(monitor_.mutex());
  void throw_if_aborted(int replica) TUTTI_REQUIRES(monitor_.mutex());
  Error mismatch() const TUTTI_REQUIRES(monitor_.mutex());
  std::string late(int replica) const TUTTI_REQUIRES(monitor_.mutex());

  ReplicaMonitor& monitor_;
  const Duration timeout_;
  const RunPlace place_;
  const int num_replicas_;
  std::vector<Seat> seats_ TUTTI_GUARDED_BY(monitor_.mutex());
  int num_present_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  int num_ended_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  int num_holding_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  bool in_action_ TUTTI_GUARDED_BY(monitor_.mutex()) = false;
  bool action_taken_ TUTTI_GUARDED_BY(monitor_.mutex()) = false;
  bool updating_ TUTTI_GUARDED_BY(monitor_.mutex()) = false;
  bool failed_in_update_ TUTTI_GUARDED_BY(monitor_.mutex()) = false;
  int leader_ TUTTI_GUARDED_BY(monitor_.mutex()) = -1;
  std::optional<Error> abort_reason_ TUTTI_GUARDED_BY(monitor_.mutex());
};

/// The message of an exception: what(), or a phrase for one that is no std::exception.
std::string message_of(const std::exception_ptr& error);

}  // namespace tutti::internal
