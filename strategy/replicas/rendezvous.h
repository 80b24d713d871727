// Rendezvous of the replicas of one run (collectives, merge calls, failures), and the lock on which
// replicas wait.
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

/// Lock and condition variables of the replicas and of the thread that called run(). In sequential
/// mode, a replica runs only while it has the turn. When it waits or ends, the turn passes to the
/// next replica (in cyclic order) that can run.
class ReplicaMonitor {
 public:
  ReplicaMonitor(int num_replicas, bool sequential)
      : sequential_(sequential && num_replicas > 1),
        slots_(static_cast<std::size_t>(num_replicas)) {}

  Mutex& mutex() TUTTI_THREAD_ANNOTATION(lock_returned(mutex_)) { return mutex_; }
  /// Declares to the thread-safety analysis that conditions run with the mutex held by wait().
  void assert_held() const TUTTI_THREAD_ANNOTATION(assert_capability(mutex_)) {}

  /// Waits until `ready()` returns true or the deadline passes; returns ready(). Replica `replica`
  /// calls it between enter() and leave().
  bool wait(int replica, TimePoint deadline, const std::function<bool()>& ready)
      TUTTI_REQUIRES(mutex_);
  /// Same as wait(), but for the thread that called run(), and for replica threads between runs.
  void wait_as_caller(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);
  void wait_idle(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);

  /// Signals that a condition for which a replica waits may have changed.
  void notify_replicas() TUTTI_REQUIRES(mutex_);
  void notify_caller() { caller_.notify_all(); }

  /// Called by run(): starts the bodies of all replicas, or nested bodies of parked replicas.
  /// Replica 0 has the first turn.
  void begin(bool outermost) TUTTI_REQUIRES(mutex_);
  /// Called by a replica when its body starts and when it ends.
  void enter(int replica) TUTTI_REQUIRES(mutex_);
  void leave(int replica) TUTTI_REQUIRES(mutex_);
  /// Passes the turn on; the replica's next wait() requests it again.
  void yield(int replica) TUTTI_REQUIRES(mutex_);
  /// Resumes a yielded replica at the point that it had reached before the nested body.
  void resume(int replica) TUTTI_REQUIRES(mutex_);

 private:
  struct Slot {
    bool active = false;
    const std::function<bool()>* ready =
        nullptr;  // condition that the replica waits for; nullptr: none
  };
  void pass_turn() TUTTI_REQUIRES(mutex_);
  bool wait_for_turn(int replica, TimePoint deadline) TUTTI_REQUIRES(mutex_);

  const bool sequential_;
  Mutex mutex_;
  CondVar replicas_;
  CondVar caller_;
  std::vector<Slot> slots_ TUTTI_GUARDED_BY(mutex_);
  int turn_ TUTTI_GUARDED_BY(mutex_) = kNoReplica;
  int last_turn_ TUTTI_GUARDED_BY(mutex_) = kNoReplica;
  static constexpr int kNoReplica = -1;
};

enum class RendezvousKind {
  kMergeCall,
  kAllReduce,
  kAllGather,
  kAssign,
  kScatter,
  kAggregateRead,
  kCompareGradients,
  kFinishGradients,
  kUpdatesDone,
  kExchange,
};

/// Dtype, shape and sparsity of one value of a collective.
struct ValueSpec {
  DType dtype = DType::kFloat32;
  Shape shape;
  bool sparse = false;
  bool operator==(const ValueSpec&) const = default;
};
ValueSpec spec_of(const Gradient& value);

/// Header of a rendezvous. All replicas must pass equal headers, except for the call site;
/// otherwise the rendezvous fails with a mismatch.
struct RendezvousHeader {
  RendezvousKind kind = RendezvousKind::kMergeCall;
  ReduceOp op = ReduceOp::kSum;
  int axis = 0;                               // axis of an all_gather; argument of an exchange
  int method = 0;                             // AssignOp, ScatterOp, or kind of exchange
  const VariableStorage* variable = nullptr;  // variable that is written or read
  const std::type_info* type = nullptr;       // type of a merge_call's argument
  std::vector<ValueSpec> values = {};
  SourceLocation where = {};

  /// Returns true if the headers are equal. Lengths along the axis of an all_gather may differ.
  bool matches(const RendezvousHeader& other) const;
  /// Returns the call, such as "all_reduce" or "Variable 'w'.assign_add".
  std::string call() const;
  /// Returns the string that workers compare, such as "all_gather(axis 0, float32 [*, 3])".
  std::string signature() const;
  /// Returns e.g. "all_reduce(SUM, float32 [2, 3]) at step.cc:41", with the length of each
  /// dimension.
  std::string describe() const;

 private:
  std::string text(bool has_all_lengths) const;
};

/// Work that a replica does while it waits in a rendezvous, such as reducing slices of gradients or
/// running the body of a nested run.
class IdleWork {
 public:
  virtual ~IdleWork() = default;
  /// Requires: the monitor's mutex is held.
  virtual bool available() = 0;
  /// Requires: the monitor's mutex is not held.
  virtual void work() = 0;
};

/// Threads that execute a run's replicas. kReplicaThreads: replica 0 on the thread that called
/// run(), every other replica on its own thread. kNested: the same threads, inside a merge call.
/// kCaller: only the caller's thread, with one replica.
enum class RunPlace { kReplicaThreads, kNested, kCaller };

/// Result of a run.
struct RunOutcome {
  std::exception_ptr error;  // exception that run() throws; nullptr: every replica succeeded
  int replica = -1;          // replica that failed; -1: none in particular
  std::vector<std::string> messages;  // error of each replica; "" if the replica did not fail
  bool failed_in_update = false;
};

/// Synchronization point of the replicas of one run in each of their collective calls. The last
/// replica to arrive compares the headers and is the leader, which runs the action while the other
/// replicas sleep (replica 0, on the thread that called run(), runs the action of a merge call).
/// Any failure aborts the run: every replica that waits or arrives later gets kAborted.
class Rendezvous {
 public:
  /// Called with one pointer per replica: the argument that the replica passed to meet().
  using Action = std::function<void(std::span<void* const> arguments)>;

  Rendezvous(ReplicaMonitor& monitor, int num_replicas, Duration timeout, RunPlace place);

  int num_replicas() const { return num_replicas_; }
  ReplicaMonitor& monitor() { return monitor_; }

  /// Waits for all replicas, runs `action` once, and then returns in every replica. `argument` must
  /// remain valid until then. Rethrows `action`'s exception (in every replica); throws kAborted, or
  /// kDeadlineExceeded naming the missing replicas.
  void meet(int replica, RendezvousHeader header, void* argument, const Action& action,
            IdleWork* idle = nullptr);

  /// Waits until `ready()` returns true. Used in actions and idle work. Throws kAborted if the run
  /// is aborted, and kDeadlineExceeded, naming `what`, after the timeout.
  void wait(int replica, const std::function<bool()>& ready, std::string_view what);
  /// Waits until `ready()` returns true or the timeout expires. To avoid a deadlock, also returns
  /// if another replica waits in a rendezvous or has ended, or if all replicas hold back. Returns
  /// ready(); throws kAborted if the run is aborted.
  bool hold_back(int replica, const std::function<bool()>& ready);
  /// Throws kAborted if the run is aborted.
  void check(int replica);
  /// Records that the body of `replica` ended, with an exception or without (nullptr).
  void ended(int replica, std::exception_ptr error);

  /// Waits until all replicas have finished. Called by run().
  void wait_for_end();
  RunOutcome outcome();

 private:
  struct Slot {
    bool present = false;
    bool ended = false;
    bool saw_abort = false;
    RendezvousHeader header;
    void* argument = nullptr;
    std::exception_ptr failure;  // exception thrown by the last rendezvous's action
    std::exception_ptr error;    // exception that ended the body
  };

  Slot& slot(int replica) TUTTI_REQUIRES(monitor_.mutex()) {
    return slots_[static_cast<std::size_t>(replica)];
  }
  void arrive(int replica, RendezvousHeader header, void* argument)
      TUTTI_REQUIRES(monitor_.mutex());
  void all_are_here(int replica) TUTTI_REQUIRES(monitor_.mutex());
  enum class Woken { kCompleted, kLeads, kIdleWork };
  /// Waits for the other replicas. If this replica becomes the leader, sets `arguments` to the
  /// arguments of all replicas.
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
  std::vector<Slot> slots_ TUTTI_GUARDED_BY(monitor_.mutex());
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

/// Returns the exception's what(), a fixed string if it is not a std::exception, or "" for null.
std::string message_of(const std::exception_ptr& error);

}  // namespace tutti::internal
