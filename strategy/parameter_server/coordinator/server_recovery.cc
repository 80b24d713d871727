// One thread takes cuts and brings servers back, so that neither happens during the other.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/server_recovery.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

/// To bring servers back that all live, and yet cannot do what they are told.
constexpr int kMostTries = 5;

}  // namespace

ServerRecovery::ServerRecovery(ClosureQueue& queue, ServerGroup& servers, JournalFile& journal,
                               const SnapshotOptions& options)
    : queue_(queue), servers_(servers), journal_(journal), options_(options) {
  if (options_.every_closures == 0 || options_.every <= Duration::zero()) {
    fail(ErrorCode::kInvalidArgument,
         "ClusterCoordinator: snapshots: expected a cut every closure ",
         "at most and after some time, got every ", options_.every_closures, " closures and ",
         seconds_between(TimePoint(), TimePoint() + options_.every), " s");
  }
  servers_.keep_in(options_.folder, journal_.job_id());
  if (const std::uint64_t cut = queue_.last_cut(); cut != 0) {
    bring_back();
    log_info(concat("coordinator: goes on from '", options_.folder, "': servers have cut ", cut,
                    " and what came since, ", queue_.num_queued(), " closures are queued, term ",
                    queue_.term()));
  } else {
    servers_.require_state();
    take_cut();  // what the program began with
    servers_.fence(queue_.term());
  }
  next_cut_at_ = deadline_after(Clock::system().now(), options_.every);
  servers_.watch([this] {
    is_troubled_.store(true);
    const MutexLock lock(mutex_);
    changed_.notify_all();
  });
  if (servers_.lost()) is_troubled_.store(true);  // before anybody watched
  thread_ = Executor::system().start("ps-recovery", [this] { run(); });
}

ServerRecovery::~ServerRecovery() { stop(); }

void ServerRecovery::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }
  servers_.watch({});
  thread_->join();
}

void ServerRecovery::note_end() {
  const std::uint64_t num_ended = num_ended_.fetch_add(1) + 1;
  if (num_ended != 1 && num_ended != options_.every_closures) return;
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void ServerRecovery::put_back(const ClosureQueue::Handout& handout, AttemptReport report) {
  is_troubled_.store(true);
  const MutexLock lock(mutex_);
  if (is_stopped_) return;
  failed_.emplace_back(handout, std::move(report));
  changed_.notify_all();
}

void ServerRecovery::save_now(TimePoint deadline) {
  const MutexLock lock(mutex_);
  const std::uint64_t number = ++num_wanted_;
  changed_.notify_all();
  (void)changed_.wait_until(mutex_, deadline, [&, this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || gave_up_ || num_served_ >= number;
  });
  if (num_served_ >= number && !last_problem_) return;
  if (num_served_ >= number) throw *last_problem_;
  if (gave_up_) throw *gave_up_;
  if (is_stopped_) fail(ErrorCode::kCancelled, "save_snapshot: the coordinator was stopped");
  fail(ErrorCode::kDeadlineExceeded,
       "save_snapshot: servers still save, or come back; expected them ",
       "to be done before the deadline; try a later one");
}

bool ServerRecovery::is_stopping() const {
  const MutexLock lock(mutex_);
  return is_stopped_;
}

bool ServerRecovery::is_due() const {
  const std::uint64_t num_ended = num_ended_.load();
  return num_ended >= options_.every_closures ||
         (num_ended > 0 && Clock::system().now() >= next_cut_at_);
}

void ServerRecovery::wait_for_work() {
  const MutexLock lock(mutex_);
  const auto is_called = [this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || is_troubled_.load() || num_wanted_ > num_served_;
  };
  // Without a closure that has ended there is no time for a cut.
  (void)changed_.wait_until(mutex_, TimePoint::max(), [&, this]() TUTTI_REQUIRES(mutex_) {
    return is_called() || num_ended_.load() > 0;
  });
  (void)changed_.wait_until(mutex_, next_cut_at_,
                            [&, this]() TUTTI_REQUIRES(mutex_) { return is_called() || is_due(); });
}

void ServerRecovery::run() {
  for (;;) {
    wait_for_work();
    std::uint64_t num_wanted = 0;
    bool is_wanted = false;
    {
      const MutexLock lock(mutex_);
      if (is_stopped_) return;
      num_wanted = num_wanted_;
      is_wanted = num_wanted > num_served_;
    }
    try {
      if (is_troubled_.load()) recover();
      if (!is_wanted && !is_due()) continue;
      const std::optional<Error> problem = try_cut();
      const MutexLock lock(mutex_);
      num_served_ = num_wanted;
      last_problem_ = problem;
      changed_.notify_all();
    } catch (const Error& error) {
      if (!is_stopping()) give_up(error);
      return;
    }
  }
}

/// What keeps servers from saving; a server that was lost meanwhile is not that.
std::optional<Error> ServerRecovery::try_cut() {
  for (;;) {
    try {
      take_cut();
      return std::nullopt;
    } catch (const Error& error) {
      if (!servers_.lost()) {
        log_warning(concat("coordinator: could not save a cut: ", error.message(),
                           "; the one before and the logs since then still count"));
        next_cut_at_ = deadline_after(Clock::system().now(), durations::kOneTry);
        return error;
      }
    }
    recover();
  }
}

void ServerRecovery::take_cut() {
  num_ended_.store(0);
  next_cut_at_ = deadline_after(Clock::system().now(), options_.every);
  const std::uint64_t before = queue_.last_cut();
  const std::uint64_t cut = queue_.begin_cut();
  servers_.save(cut, queue_.term(), before);
  queue_.end_cut(cut);
  if (journal_.num_appended() < options_.most_journal_bytes) return;
  queue_.look_at_ledger([this](const ClosureLedger& ledger) { journal_.begin_with(ledger); });
}

/// Nothing is given out meanwhile: who is to come back may be seen before watch() told of the loss.
void ServerRecovery::recover() {
  is_troubled_.store(true);
  while (const auto lost = servers_.lost()) {
    begin_term(*lost);
    bring_back();
  }
  std::vector<Failed> failed;
  {
    const MutexLock lock(mutex_);
    failed.swap(failed_);
  }
  // Attempts that were voided do not count.
  for (auto& [handout, report] : failed) queue_.put_back(handout, std::move(report));
  {
    const MutexLock lock(mutex_);
    is_troubled_.store(false);
    // What came meanwhile is looked at next.
    if (!failed_.empty() || servers_.lost()) is_troubled_.store(true);
    changed_.notify_all();
  }
  queue_.wake_workers();
}

void ServerRecovery::begin_term(const std::string& why) {
  const std::uint64_t term = queue_.take_over();
  log_warning(concat("coordinator: ", why, ": it comes back with cut ", queue_.last_cut(),
                     " and what came since, the others stay as they are, ", queue_.num_queued(),
                     " closures are queued now, term ", term));
}

/// Again, under a later term, as long as servers are lost on the way.
void ServerRecovery::bring_back() {
  for (int num_tries = 0;;) {
    try {
      return servers_.come_back(queue_.last_cut(), queue_.term());
    } catch (const Error& error) {
      if (!may_be_loss(error.code()) || !servers_.lost()) throw;
      if (servers_.are_all_here() && ++num_tries == kMostTries) {
        throw error.with_context(concat("all servers live, but ", kMostTries, " times in a row"));
      }
      begin_term(error.message());
    }
  }
}

void ServerRecovery::give_up(const Error& error) {
  log(LogLevel::kError, concat("coordinator: cannot go on: ", error.message()));
  queue_.stop(error.with_context("the coordinator was stopped"));
  const MutexLock lock(mutex_);
  gave_up_ = error;
  changed_.notify_all();
}

}  // namespace tutti::internal
