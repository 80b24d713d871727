// Implements ClosureQueue. The ledger changes states; this file waits, wakes threads and delivers
// results.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_queue.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

bool is_over(const ClosureLedger::Closure* closure) {
  return closure == nullptr || closure->has_ended();
}

/// Returns the total size of tensors and strings, plus a constant for each nested value.
std::size_t bytes_of(const Nest& nest) {
  std::size_t bytes = 256;
  if (nest.tensor() != nullptr) bytes += static_cast<std::size_t>(nest.tensor()->num_bytes());
  if (nest.text() != nullptr) bytes += nest.text()->size();
  if (nest.list() != nullptr) {
    for (const Nest& each : *nest.list()) bytes += bytes_of(each);
  }
  if (nest.map() != nullptr) {
    for (const Nest::Member& each : *nest.map()) bytes += bytes_of(each.second);
  }
  return bytes;
}

Error cancelled_error(std::uint64_t number, const char* why) {
  return Error(ErrorCode::kCancelled, concat("closure ", number, ": cancelled because ", why,
                                             "; please schedule it again"));
}

}  // namespace

ScheduledWork::ScheduledWork(std::string step, Nest arguments)
    : step_(std::move(step)), arguments_(std::move(arguments)), num_bytes_(bytes_of(arguments_)) {}

void ScheduledWork::ended(const Error& error) const {
  const auto* own = dynamic_cast<const ClosureError*>(&error);
  result_->abort(own != nullptr ? std::make_exception_ptr(*own) : std::make_exception_ptr(error));
}

ClosureQueue::ClosureQueue(ClosureQueueOptions options)
    : options_(std::move(options)),
      ledger_(options_.rules, options_.first_number, options_.generation) {
  const MutexLock lock(mutex_);
  raise_watermark();
}

void ClosureQueue::continue_from(std::uint64_t first_number) {
  const MutexLock lock(mutex_);
  TUTTI_CHECK(entries_.empty() && ledger_.is_drained(),
              "continue_from: expected no scheduled closures");
  ledger_ = ClosureLedger(options_.rules, first_number, ledger_.generation() + 1);
  raise_watermark();
}

void ClosureQueue::raise_watermark() {
  watermark_->raise(closure_id(ledger_.generation(), ledger_.finished_below()));
}

std::uint64_t ClosureQueue::put(std::shared_ptr<const ScheduledWork> work, TimePoint deadline) {
  MutexLock lock(mutex_);
  try {
    const bool in_time = for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
      const bool has_room = ledger_.num_queued() < options_.most_queued;
      return is_stopped_ || (num_joining_ == 0 && (has_room || !ledger_.failures().empty()));
    });
    require_in_time(in_time, "schedule");
    raise_failures(deadline);
    const std::uint64_t number = ledger_.schedule();
    entries_[number].work = std::move(work);
    assign_closures();
    return number;
  } catch (const Error& error) {
    if (work != nullptr) {
      work->ended(Error(ErrorCode::kCancelled,
                        concat("schedule: the closure was cancelled, because schedule() threw: ",
                               error.message(), "; please schedule it again")));
    }
    throw;
  }
}

std::optional<std::uint64_t> ClosureQueue::next_for(int worker) {
  std::size_t num_present = 0;
  for (int each = 0; each < options_.num_workers; ++each) num_present += is_present(each) ? 1 : 0;
  const auto may_take = [&, this](int each) TUTTI_REQUIRES(mutex_) {
    const int running = num_running_on_[each];
    const bool has_room = running < options_.window && is_present(each);
    return has_room && (running == 0 || ledger_.num_queued() >= num_present);
  };
  if (!may_take(worker)) return std::nullopt;
  const auto new_to_it = ledger_.next_queued_new_to(worker, is_paused_);
  if (new_to_it) return new_to_it;
  bool another_may = false;
  for (int each = 0; each < options_.num_workers; ++each) {
    another_may = another_may || (each != worker && may_take(each));
  }
  return another_may ? std::nullopt : ledger_.next_queued(is_paused_);
}

ClosureQueue::AssignedClosure ClosureQueue::start(std::uint64_t number, int worker) {
  const int attempt = ledger_.start(number, worker);
  ++num_running_on_[worker];
  running_[num_given_++] = number;
  Entry& entry = entries_.at(number);
  entry.token = std::make_shared<CancellationToken>();
  if (ledger_.num_queued() + 1 >= options_.most_queued) for_users_.notify_all();
  return {number,     attempt,    worker, closure_id(ledger_.generation(), number),
          entry.work, entry.token};
}

/// Assigns queued closures to threads that wait in get(), until no closure is left or none of these
/// threads may receive one.
void ClosureQueue::assign_closures() {
  std::optional<std::uint64_t> number;  // set by may_have_one, so that next_for() is called once
  const auto may_have_one = [&, this](const Waiting* each) TUTTI_REQUIRES(mutex_) {
    number = next_for(each->worker);
    return number.has_value();
  };
  while (!is_stopped_ && !waiting_.empty() && ledger_.next_queued(is_paused_)) {
    std::ranges::sort(waiting_, {}, [this](const Waiting* each) TUTTI_REQUIRES(mutex_) {
      return std::pair(num_running_on_[each->worker], each->worker);
    });
    const auto found = std::ranges::find_if(waiting_, may_have_one);
    if (found == waiting_.end()) return;
    Waiting& waiting = **found;
    waiting_.erase(found);
    waiting.assigned = start(*number, waiting.worker);
    waiting.given.notify_one();
  }
}

std::optional<ClosureQueue::AssignedClosure> ClosureQueue::get(int worker, TimePoint deadline) {
  MutexLock lock(mutex_);
  Waiting waiting{worker};
  waiting_.push_back(&waiting);
  assign_closures();
  (void)waiting.given.wait_until(mutex_, deadline, [&, this]() TUTTI_REQUIRES(mutex_) {
    return waiting.assigned || is_stopped_;
  });
  std::erase(waiting_, &waiting);
  return is_stopped_ ? std::nullopt : waiting.assigned;
}

void ClosureQueue::wake_workers() {
  MutexLock lock(mutex_);
  assign_closures();
}

void ClosureQueue::fail_next(ErrorCode code, ErrorOrigin origin, std::string text) {
  std::optional<AssignedClosure> assigned;
  {
    MutexLock lock(mutex_);
    const auto number = ledger_.next_queued();
    if (is_stopped_ || !number) return;
    assigned = start(*number, 0);
  }
  mark_failed(*assigned, code, origin, std::move(text));
}

/// For each closure with a number >= `first`: if the closure ended unsuccessfully, completes its
/// result with an error; if its result is not needed, cancels its token.
void ClosureQueue::settle(std::uint64_t first) {
  for (auto its = entries_.lower_bound(first); its != entries_.end(); ++its) {
    auto& [number, entry] = *its;
    const ClosureLedger::Closure* closure = ledger_.find(number);
    const bool runs = closure != nullptr && closure->state == ClosureLedger::State::kRunning;
    const bool is_wanted = runs && (ledger_.failures().empty() || closure->has_finished);
    if (entry.token != nullptr && !is_wanted) entry.token->cancel();
    if (!runs) entry.token.reset();
    if (entry.is_settled || !is_over(closure)) continue;
    settle_entry(entry);
    const auto& failures = ledger_.failures();
    const auto failure = std::ranges::find(failures, number, &ClosureFailure::closure);
    if (failure != failures.end()) {
      entry.work->ended(ClosureError({*failure}));
    } else {
      entry.work->ended(cancelled_error(number, "another closure failed"));
    }
  }
  forget();
}

/// Marks the closure's result as final.
void ClosureQueue::settle_entry(Entry& entry) {
  if (std::exchange(entry.is_settled, true)) return;
  ++num_ended_;
  num_held_bytes_ += entry.work->num_bytes();
}

/// Erases closures that the ledger has forgotten, only from the front, because the ledger forgets
/// in order.
void ClosureQueue::forget() {
  while (!entries_.empty() && ledger_.find(entries_.begin()->first) == nullptr) {
    num_held_bytes_ -= entries_.begin()->second.work->num_bytes();
    entries_.erase(entries_.begin());
  }
}

void ClosureQueue::attempt_over(const AssignedClosure& assigned) {
  // A voided attempt was already subtracted when it was voided.
  --num_running_on_[assigned.worker];
  std::erase_if(running_, [&](const auto& each) { return each.second == assigned.number; });
  raise_watermark();
  assign_closures();
  const bool may_save = is_paused_ && ledger_.is_between_closures();
  const bool has_caught_up = is_repeating_ && !ledger_.is_catching_up();
  if (has_caught_up) is_repeating_ = false;
  if (ledger_.is_drained() || may_save || has_caught_up) for_users_.notify_all();
}

bool ClosureQueue::mark_finished(const AssignedClosure& assigned,
                                 const std::function<void()>& deliver) {
  MutexLock lock(mutex_);
  if (is_stopped_ || !ledger_.is_current(assigned.number, assigned.attempt)) return false;
  ledger_.finish(assigned.number, assigned.attempt);
  Entry& entry = entries_.at(assigned.number);
  if (!entry.is_settled && deliver) deliver();
  settle_entry(entry);
  entry.token.reset();
  forget();
  attempt_over(assigned);
  return true;
}

bool ClosureQueue::end_attempt(const AssignedClosure& assigned, const std::function<void()>& end) {
  MutexLock lock(mutex_);
  if (is_stopped_ || !ledger_.is_current(assigned.number, assigned.attempt)) return false;
  const std::uint64_t first = ledger_.finished_below();
  const bool had_finished = ledger_.find(assigned.number)->has_finished;
  end();
  if (had_finished) require_no_failure(assigned.number);
  settle(first);
  attempt_over(assigned);
  return true;
}

/// If this closure has failed, reports data loss: it had finished before a rollback, and its
/// changes are lost.
void ClosureQueue::require_no_failure(std::uint64_t number) {
  const auto& failures = ledger_.failures();
  const auto failure = std::ranges::find(failures, number, &ClosureFailure::closure);
  if (failure == failures.end()) return;
  why_incomplete_ = Error(
      ErrorCode::kDataLoss,
      concat("closure ", number, " had finished, but failed when it was repeated after a server ",
             "was lost, so the variables lack its changes: ", failure->text,
             "; expected it to succeed each time it runs; start the job again from an older ",
             "checkpoint, or schedule the lost closures"));
  log(LogLevel::kError, concat("coordinator: ", why_incomplete_->message()));
}

bool ClosureQueue::mark_failed(const AssignedClosure& assigned, ErrorCode code, ErrorOrigin origin,
                               std::string text) {
  return end_attempt(assigned, [&, this]() TUTTI_REQUIRES(mutex_) {
    ledger_.fail(
        {assigned.number, assigned.attempt, assigned.worker, origin, code, std::move(text)});
  });
}

bool ClosureQueue::mark_stopped(const AssignedClosure& assigned) {
  return end_attempt(assigned, [&, this]() TUTTI_REQUIRES(mutex_) {
    ledger_.stop(assigned.number, assigned.attempt);
  });
}

bool ClosureQueue::put_back(const AssignedClosure& assigned, AttemptReport report) {
  return end_attempt(assigned, [&, this]() TUTTI_REQUIRES(mutex_) {
    ledger_.put_back(assigned.number, assigned.attempt, std::move(report));
  });
}

void ClosureQueue::require_in_time(bool in_time, const char* who) {
  if (is_stopped_ && why_stopped_) throw why_stopped_->with_context(who);
  if (is_stopped_) {
    fail(ErrorCode::kCancelled, who, ": the coordinator was stopped; expected a running one");
  }
  if (in_time) return;
  fail(ErrorCode::kDeadlineExceeded, who, ": still ", ledger_.num_queued(), " closures queued and ",
       ledger_.num_running(), " running at the deadline: ", join(running_now()),
       "; try a later deadline, or check these closures");
}

void ClosureQueue::raise_failures(TimePoint deadline) {
  if (ledger_.failures().empty()) return;
  const bool in_time = for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || ledger_.failures().empty() || ledger_.is_drained();
  });
  require_in_time(in_time, "waiting for the closures that run after one has failed");
  if (ledger_.failures().empty()) return;  // another waiting thread has already thrown them
  const std::vector<ClosureFailure> failures = ledger_.raise_failures();
  for_users_.notify_all();
  throw ClosureError(failures);
}

void ClosureQueue::wait(TimePoint deadline) {
  MutexLock lock(mutex_);
  struct Joining {
    Joining(int& count, CondVar& waiters) : count(count), waiters(waiters) { ++count; }
    ~Joining() {
      --count;
      waiters.notify_all();
    }
    int& count;
    CondVar& waiters;
  };
  const Joining joining(num_joining_, for_users_);
  const bool in_time = for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || !ledger_.failures().empty() || ledger_.is_drained();
  });
  require_in_time(in_time, "join");
  raise_failures(deadline);
}

bool ClosureQueue::done() {
  MutexLock lock(mutex_);
  require_in_time(true, "done");
  raise_failures(TimePoint::max());
  return ledger_.is_drained();
}

void ClosureQueue::stop(std::optional<Error> why) {
  MutexLock lock(mutex_);
  if (!is_stopped_) why_stopped_ = std::move(why);
  stop_now(why_stopped_ ? why_stopped_->message().c_str() : "the coordinator was stopped");
}

bool ClosureQueue::is_stopped() const {
  MutexLock lock(mutex_);
  return is_stopped_;
}

void ClosureQueue::stop_now(const char* why) {
  if (std::exchange(is_stopped_, true)) return;
  for (auto& [number, entry] : entries_) {
    if (entry.token != nullptr) entry.token->cancel();
    if (std::exchange(entry.is_settled, true)) continue;
    entry.work->ended(cancelled_error(number, why));
  }
  entries_.clear();
  for (Waiting* const each : waiting_) each->given.notify_one();
  for_users_.notify_all();
}

bool ClosureQueue::pause(TimePoint deadline) {
  MutexLock lock(mutex_);
  is_paused_ = true;
  (void)for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || ledger_.is_between_closures();
  });
  return !is_stopped_ && ledger_.is_between_closures();
}

void ClosureQueue::resume() {
  MutexLock lock(mutex_);
  is_paused_ = false;
  assign_closures();
}

void ClosureQueue::note_saved(std::uint64_t number) {
  MutexLock lock(mutex_);
  ledger_.note_saved(number);
  forget();
}

void ClosureQueue::roll_back() {
  MutexLock lock(mutex_);
  ledger_.roll_back();
  is_repeating_ = ledger_.is_catching_up();
  num_running_on_.clear();
  running_.clear();
  settle(0);
  raise_watermark();
  assign_closures();
  for_users_.notify_all();
}

void ClosureQueue::wait_until_caught_up(TimePoint deadline) {
  MutexLock lock(mutex_);
  const bool in_time = for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || !ledger_.is_catching_up();
  });
  require_in_time(in_time, "a read of variables while closures are repeated");
  if (why_incomplete_) throw *why_incomplete_;
}

bool ClosureQueue::catch_up(TimePoint deadline) {
  MutexLock lock(mutex_);
  (void)for_users_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || !ledger_.is_catching_up();
  });
  return !is_stopped_ && !ledger_.is_catching_up();
}

std::size_t ClosureQueue::num_held_bytes() const {
  MutexLock lock(mutex_);
  return num_held_bytes_;
}

std::vector<std::string> ClosureQueue::running() const {
  MutexLock lock(mutex_);
  return running_now();
}

std::uint64_t ClosureQueue::num_ended() const {
  MutexLock lock(mutex_);
  return num_ended_;
}
ClosureLedger ClosureQueue::ledger() const {
  MutexLock lock(mutex_);
  return ledger_;
}

std::vector<std::string> ClosureQueue::running_now() const {
  std::vector<std::string> lines;
  for (const auto& [order, number] : running_) {
    const ClosureLedger::Closure& closure = *ledger_.find(number);
    lines.push_back(concat("closure ", number, " on worker ", closure.worker, " (attempt ",
                           closure.attempts, ")"));
  }
  return lines;
}

}  // namespace tutti::internal
