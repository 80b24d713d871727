// Implements the rendezvous of replicas. Vocabulary: a replica *arrives*, is *present* until the
// rendezvous *completes*, and *ends* when its body returns or throws. A rendezvous is decided when
// every replica is present or has ended. Only then are headers compared. A replica that has ended
// counts as a mismatch, so messages name all replicas regardless of the order of arrival.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/rendezvous.h"

#include <algorithm>
#include <map>

#include "core/run_token.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

bool ReplicaMonitor::wait(int replica, TimePoint deadline, const std::function<bool()>& ready) {
  if (!sequential_) return replicas_.wait_until(mutex_, deadline, ready);
  if (turn_ == replica && ready()) return true;
  Slot& slot = slots_[static_cast<std::size_t>(replica)];
  slot.ready = &ready;
  if (turn_ == replica) {
    last_turn_ = replica;
    turn_ = kNoReplica;
  }
  if (turn_ == kNoReplica) pass_turn();
  if (!wait_for_turn(replica, deadline)) {
    static const std::function<bool()> always = [] { return true; };
    slot.ready = &always;  // past its deadline, the replica resumes at its next turn
    if (turn_ == kNoReplica) pass_turn();
    wait_for_turn(replica, TimePoint::max());
  }
  slot.ready = nullptr;
  return ready();
}

void ReplicaMonitor::wait_as_caller(const std::function<bool()>& ready) {
  while (!caller_.wait_for(mutex_, std::chrono::hours(1), ready)) {
  }
}

void ReplicaMonitor::wait_idle(const std::function<bool()>& ready) {
  while (!replicas_.wait_for(mutex_, std::chrono::hours(1), ready)) {
  }
}

void ReplicaMonitor::notify_replicas() {
  if (sequential_ && turn_ == kNoReplica) pass_turn();
  replicas_.notify_all();
}

void ReplicaMonitor::begin(bool outermost) {
  if (outermost) {
    for (Slot& slot : slots_) slot = Slot{true, nullptr};
  }
  last_turn_ = kNoReplica;
  turn_ = kNoReplica;
  notify_replicas();
}

void ReplicaMonitor::enter(int replica) {
  if (sequential_) wait_for_turn(replica, TimePoint::max());
}

void ReplicaMonitor::yield(int replica) {
  if (!sequential_) return;
  static const std::function<bool()> never = [] { return false; };
  slots_[static_cast<std::size_t>(replica)].ready = &never;
  last_turn_ = replica;
  turn_ = kNoReplica;
  pass_turn();
}

void ReplicaMonitor::resume(int replica) {
  if (!sequential_) return;
  slots_[static_cast<std::size_t>(replica)].ready = nullptr;
  if (turn_ == kNoReplica) pass_turn();
  wait_for_turn(replica, TimePoint::max());
}

void ReplicaMonitor::leave(int replica) {
  slots_[static_cast<std::size_t>(replica)].active = false;
  if (!sequential_) return;
  last_turn_ = replica;
  turn_ = kNoReplica;
  pass_turn();
}

void ReplicaMonitor::pass_turn() {
  const int count = static_cast<int>(slots_.size());
  for (int i = 1; i <= count; ++i) {
    const int replica = (last_turn_ + i) % count;
    const Slot& slot = slots_[static_cast<std::size_t>(replica)];
    if (!slot.active || (slot.ready && !(*slot.ready)())) continue;
    turn_ = replica;
    replicas_.notify_all();
    return;
  }
}

bool ReplicaMonitor::wait_for_turn(int replica, TimePoint deadline) {
  const auto my_turn = [this, replica]() TUTTI_REQUIRES(mutex_) { return turn_ == replica; };
  if (deadline != TimePoint::max()) return replicas_.wait_until(mutex_, deadline, my_turn);
  wait_idle(my_turn);
  return true;
}

namespace {

/// Returns "replica 1" or "replicas 0, 2".
std::string replicas(const std::vector<int>& numbers) {
  return concat(numbers.size() == 1 ? "replica " : "replicas ", join(numbers));
}

}  // namespace

std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

Rendezvous::Rendezvous(ReplicaMonitor& monitor, int num_replicas, Duration timeout, RunPlace place)
    : monitor_(monitor),
      timeout_(timeout),
      place_(place),
      num_replicas_(num_replicas),
      slots_(static_cast<std::size_t>(num_replicas)) {}

void Rendezvous::meet(int replica, RendezvousHeader header, void* argument, const Action& action,
                      IdleWork* idle) {
  Woken woken = Woken::kCompleted;
  std::vector<void*> arguments;
  {
    // One critical section, because in sequential mode no other replica may run until this one
    // passes on its turn.
    MutexLock lock(monitor_.mutex());
    arrive(replica, std::move(header), argument);
    woken = wait_for_others(replica, idle, arguments);
  }
  while (woken == Woken::kIdleWork) {
    idle->work();
    MutexLock lock(monitor_.mutex());
    woken = wait_for_others(replica, idle, arguments);
  }
  if (woken == Woken::kLeads) run_action(action, arguments);
  MutexLock lock(monitor_.mutex());
  std::exception_ptr failure = std::exchange(slot(replica).failure, nullptr);
  if (failure) std::rethrow_exception(std::move(failure));
  throw_if_aborted(replica);
}

void Rendezvous::arrive(int replica, RendezvousHeader header, void* argument) {
  throw_if_aborted(replica);
  Slot& own = slot(replica);
  own.present = true;
  own.header = std::move(header);
  own.argument = argument;
  ++num_present_;
  if (num_present_ + num_ended_ == num_replicas()) all_are_here(replica);
  if (num_holding_ > 0) monitor_.notify_replicas();
  if (abort_reason_) own.present = false;
  throw_if_aborted(replica);
}

void Rendezvous::all_are_here(int replica) {
  const auto differs = [this](const Slot& other) TUTTI_REQUIRES(monitor_.mutex()) {
    return other.ended || !other.header.matches(slots_.front().header);
  };
  if (std::ranges::any_of(slots_, differs)) {
    abort(mismatch());
    return;
  }
  in_action_ = true;
  action_taken_ = false;
  leader_ = slots_.front().header.kind == RendezvousKind::kMergeCall ? 0 : replica;
  if (leader_ != replica) monitor_.notify_replicas();
}

Rendezvous::Woken Rendezvous::wait_for_others(int replica, IdleWork* idle,
                                              std::vector<void*>& arguments) {
  for (;;) {
    const auto done = [this, replica]()
                          TUTTI_REQUIRES(monitor_.mutex()) { return !slot(replica).present; };
    if (leads(replica)) {
      action_taken_ = true;
      for (const Slot& each : slots_) arguments.push_back(each.argument);
      return Woken::kLeads;
    }
    const TimePoint deadline = deadline_after(Clock::system().now(), timeout_);
    const bool woken = monitor_.wait(replica, deadline, [&]() TUTTI_REQUIRES(monitor_.mutex()) {
      return done() || leads(replica) || (abort_reason_ && !in_action_) ||
             (idle && idle->available());
    });
    if (done()) return Woken::kCompleted;
    if (leads(replica)) continue;
    if (abort_reason_ && !in_action_) {
      withdraw(replica);
      throw_if_aborted(replica);
    }
    if (idle && idle->available()) return Woken::kIdleWork;
    if (woken || in_action_) continue;
    const Error error(ErrorCode::kDeadlineExceeded, late(replica));
    withdraw(replica);
    log(LogLevel::kError, error.message());
    abort(error);
    throw error;
  }
}

void Rendezvous::withdraw(int replica) {
  slot(replica).present = false;
  --num_present_;
}

void Rendezvous::run_action(const Action& action, std::span<void* const> arguments) {
  std::exception_ptr failure;
  try {
    const BlockedScope without_token;  // a merge function may run another strategy on this thread
    const NoDeviceScope
        of_no_replica;  // hides the leader's device, because any replica may be the leader
    action(arguments);
  } catch (...) {
    failure = std::current_exception();
  }
  MutexLock lock(monitor_.mutex());
  complete(std::move(failure));
}

void Rendezvous::complete(std::exception_ptr failure) {
  if (abort_reason_) failure = nullptr;  // all replicas throw the abort reason instead
  const RendezvousKind kind = slots_.front().header.kind;
  if (!failure && !abort_reason_ && kind == RendezvousKind::kFinishGradients) updating_ = true;
  if (!failure && kind == RendezvousKind::kUpdatesDone) updating_ = false;
  for (Slot& each : slots_) {
    each.present = false;
    each.failure = failure;
  }
  num_present_ = 0;
  in_action_ = false;
  monitor_.notify_replicas();
}

void Rendezvous::wait(int replica, const std::function<bool()>& ready, std::string_view what) {
  MutexLock lock(monitor_.mutex());
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout_);
  const bool woken = monitor_.wait(replica, deadline, [&]() TUTTI_REQUIRES(monitor_.mutex()) {
    return ready() || abort_reason_.has_value();
  });
  throw_if_aborted(replica);
  if (woken) return;
  const Error error(ErrorCode::kDeadlineExceeded,
                    concat(what, ": waited ", std::chrono::duration<double>(timeout_).count(),
                           " s for the other replicas"));
  log(LogLevel::kError, error.message());
  abort(error);
  throw error;
}

bool Rendezvous::hold_back(int replica, const std::function<bool()>& ready) {
  MutexLock lock(monitor_.mutex());
  ++num_holding_;
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout_);
  monitor_.wait(replica, deadline, [&]() TUTTI_REQUIRES(monitor_.mutex()) {
    return ready() || abort_reason_.has_value() || num_present_ + num_ended_ > 0 ||
           num_holding_ == num_replicas();
  });
  --num_holding_;
  throw_if_aborted(replica);
  return ready();
}

void Rendezvous::check(int replica) {
  MutexLock lock(monitor_.mutex());
  throw_if_aborted(replica);
}

void Rendezvous::abort(Error reason) {
  if (abort_reason_) return;
  abort_reason_ = std::move(reason);
  failed_in_update_ = updating_;
  monitor_.notify_replicas();
}

void Rendezvous::throw_if_aborted(int replica) {
  if (!abort_reason_) return;
  slot(replica).saw_abort = true;
  throw Error(
      ErrorCode::kAborted,
      concat("replica ", replica, ": stopped because the run failed: ", abort_reason_->message()));
}

void Rendezvous::ended(int replica, std::exception_ptr error) {
  MutexLock lock(monitor_.mutex());
  slot(replica).ended = true;
  ++num_ended_;
  if (num_holding_ > 0) monitor_.notify_replicas();
  if (error && !abort_reason_) {
    abort(Error(ErrorCode::kAborted, concat("replica ", replica, ": ", message_of(error))));
  }
  slot(replica).error = std::move(error);
  if (!abort_reason_ && num_present_ > 0 && num_present_ + num_ended_ == num_replicas()) {
    abort(mismatch());
  }
  if (place_ == RunPlace::kReplicaThreads) monitor_.leave(replica);
  if (place_ == RunPlace::kNested) monitor_.yield(replica);
  if (num_ended_ == num_replicas()) monitor_.notify_caller();
}

void Rendezvous::wait_for_end() {
  MutexLock lock(monitor_.mutex());
  monitor_.wait_as_caller(
      [this]() TUTTI_REQUIRES(monitor_.mutex()) { return num_ended_ == num_replicas(); });
}

RunOutcome Rendezvous::outcome() {
  MutexLock lock(monitor_.mutex());
  RunOutcome result;
  if (!abort_reason_) return result;
  result.failed_in_update = failed_in_update_;
  for (int r = 0; r < num_replicas(); ++r) {
    Slot& each = slot(r);
    result.messages.push_back(message_of(each.error));
    if (!each.error || each.saw_abort || result.error) continue;
    result.error = each.error;
    result.replica = r;
  }
  if (!result.error) result.error = std::make_exception_ptr(*abort_reason_);
  // An exception that an action threw in all replicas does not belong to any one of them.
  const auto has_it = [&](const Slot& each) { return each.error == result.error; };
  if (num_replicas() > 1 && std::ranges::all_of(slots_, has_it)) result.replica = -1;
  for (Slot& each : slots_) each.error = nullptr;
  return result;
}

Error Rendezvous::mismatch() const {
  std::map<std::string, std::vector<int>> callers;  // keyed by call description
  std::vector<int> returned;
  std::string call;
  bool same_kind = true;
  for (int r = 0; r < num_replicas(); ++r) {
    const Slot& each = slots_[static_cast<std::size_t>(r)];
    if (each.ended) {
      returned.push_back(r);
    } else if (each.present) {
      if (call.empty()) call = each.header.call();
      same_kind = same_kind && each.header.call() == call;
      callers[each.header.describe()].push_back(r);
    }
  }
  std::vector<std::pair<std::vector<int>, std::string>> groups;
  for (const auto& [text, numbers] : callers) groups.emplace_back(numbers, text);
  std::ranges::sort(groups);
  std::string text = call + " mismatch: ";
  if (!returned.empty()) text += replicas(returned) + " returned; ";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [numbers, what] = groups[i];
    text += concat(i ? "; " : "", replicas(numbers),
                   numbers.size() == 1 ? " waits in " : " wait in ", what);
  }
  return Error(
      same_kind && returned.empty() ? ErrorCode::kInvalidArgument : ErrorCode::kFailedPrecondition,
      text + "; expected the same calls in the same order in all replicas");
}

std::string Rendezvous::late(int replica) const {
  std::vector<int> missing;
  for (int r = 0; r < num_replicas(); ++r) {
    const Slot& each = slots_[static_cast<std::size_t>(r)];
    if (!each.present && !each.ended && r != replica) missing.push_back(r);
  }
  return concat(slots_[static_cast<std::size_t>(replica)].header.describe(), ": waited ",
                std::chrono::duration<double>(timeout_).count(), " s for ", replicas(missing),
                "; expected all ", num_replicas(),
                " replicas; try a longer timeout, or check their calls");
}

namespace {

/// Describes dtype, shape and sparsity; `free_axis` is shown as "*" instead of its length.
std::string describe_spec(const ValueSpec& value, std::optional<int> free_axis) {
  std::vector<std::string> lengths;
  for (int i = 0; i < value.shape.rank(); ++i) {
    lengths.push_back(i == free_axis ? "*" : concat(value.shape.dim(i)));
  }
  return concat(to_string(value.dtype), " [", join(lengths), "]", value.sparse ? " (sparse)" : "");
}

std::string describe_specs(const std::vector<ValueSpec>& values,
                           std::optional<int> free_axis = std::nullopt) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < kShown; ++i)
    text += ", " + describe_spec(values[i], free_axis);
  if (values.size() > kShown) text += concat(", and ", values.size() - kShown, " more values");
  return text;
}

}  // namespace

ValueSpec spec_of(const Gradient& value) {
  if (value.is_dense()) return {value.dense().dtype(), value.dense().shape(), false};
  if (value.is_slices()) {
    return {value.slices().values.dtype(), value.slices().dense_shape, true};
  }
  fail(ErrorCode::kInvalidArgument,
       "ReplicaContext::all_reduce: expected a dense tensor or IndexedSlices, got an undefined "
       "value");
}

bool RendezvousHeader::matches(const RendezvousHeader& other) const {
  const bool same_type = type == other.type || (type && other.type && *type == *other.type);
  if (kind != other.kind || op != other.op || axis != other.axis || method != other.method ||
      variable != other.variable || !same_type) {
    return false;
  }
  if (kind != RendezvousKind::kAllGather) return values == other.values;
  const auto is_like = [this](const ValueSpec& a, const ValueSpec& b) {
    return a.dtype == b.dtype && a.shape.rank() == b.shape.rank() &&
           a.shape.with_dim(axis, 0) == b.shape.with_dim(axis, 0);
  };
  return std::ranges::equal(values, other.values, is_like);
}

std::string RendezvousHeader::call() const {
  switch (kind) {
    case RendezvousKind::kMergeCall:
      return "merge_call";
    case RendezvousKind::kAllReduce:
      return "all_reduce";
    case RendezvousKind::kAllGather:
      return "all_gather";
    case RendezvousKind::kAssign:
      return concat("Variable '", variable->name(), "'.", static_cast<AssignOp>(method));
    case RendezvousKind::kScatter:
      return concat("Variable '", variable->name(), "'.", static_cast<ScatterOp>(method));
    case RendezvousKind::kAggregateRead:
      return concat("the aggregated read of Variable '", variable->name(), "'");
    case RendezvousKind::kCompareGradients:
      return "the comparison of gradients that are not summed";
    case RendezvousKind::kFinishGradients:
      return "the reduction of gradients";
    case RendezvousKind::kUpdatesDone:
      return "the end of the variables' update";
    case RendezvousKind::kExchange:
      return "an exchange between positions";
  }
  fail(ErrorCode::kInternal, "RendezvousKind: no such value: ", static_cast<int>(kind));
}

std::string RendezvousHeader::text(bool has_all_lengths) const {
  std::string text = call();
  if (kind == RendezvousKind::kAllReduce) text += concat("(", op, describe_specs(values), ")");
  if (kind == RendezvousKind::kExchange && !values.empty()) {
    text += " of" + describe_specs(values).substr(1);
  }
  if (kind == RendezvousKind::kAllGather) {
    const std::optional<int> free_axis = has_all_lengths ? std::nullopt : std::optional(axis);
    text += concat("(axis ", axis, describe_specs(values, free_axis), ")");
  }
  return text;
}

std::string RendezvousHeader::signature() const { return text(false); }

std::string RendezvousHeader::describe() const {
  std::string text = this->text(true);
  if (kind == RendezvousKind::kMergeCall || kind == RendezvousKind::kAllReduce ||
      kind == RendezvousKind::kAllGather || kind == RendezvousKind::kExchange) {
    text += where.line() ? " at " + to_string(where) : " in a layer, loss or metric";
  }
  return text;
}

}  // namespace tutti::internal
