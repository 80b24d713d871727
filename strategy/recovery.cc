// Implements Recovery.
// SPDX-License-Identifier: Apache-2.0
//
// commit() returns only after all workers have stored that commit, so a worker that stores the next
// commit knows that all others have the previous one. Each worker keeps two commits, so all
// remaining workers have a commit in common, no matter when a worker dies or a connection breaks.
#include "tutti/strategy/recovery.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>

#include "core/call_site.h"
#include "core/hash.h"
#include "cross_device_ops/gpu_ranks.h"
#include "strategy/multi_worker/worker_team.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {
namespace {

constexpr std::size_t kCommitsKept = 2;
/// Time to wait for the job to detect a lost worker; longer than the detection takes.
constexpr Duration kPatience = std::chrono::seconds(4);
/// Maximum number of times that a step is repeated if a connection breaks each time.
constexpr int kMostRepeats = 20;

/// Returns the strategy's team; nullptr if there is no other worker.
internal::WorkerTeam* team_of_several(const Strategy& strategy) {
  internal::WorkerTeam* const team = internal::team_of(strategy);
  return team && team->num_workers() > 1 ? team : nullptr;
}

/// Parses the step numbers of a worker's commits, newest first: "42 41"; "" for a new process.
std::vector<std::int64_t> steps_of(const std::string& text) {
  std::istringstream steps(text);
  return {std::istream_iterator<std::int64_t>(steps), {}};
}

/// Returns the newest commit that all workers with commits have in common.
std::optional<std::int64_t> newest_of_all(const std::vector<std::string>& commits) {
  std::optional<std::int64_t> newest;
  for (const std::string& of_worker : commits) {
    const std::vector<std::int64_t> steps = steps_of(of_worker);
    if (!steps.empty()) newest = std::min(newest.value_or(steps.front()), steps.front());
  }
  return newest;
}

}  // namespace

Recovery::Recovery(Strategy& strategy, Checkpoint state, RecoveryOptions options)
    : team_(team_of_several(strategy)), state_(std::move(state)), options_(options) {}

bool starts_workers_again() {
  const char* const restarts = std::getenv("TUTTI_MAX_RESTARTS");
  return restarts && *restarts != '\0' && std::string_view(restarts) != "0";
}

bool Recovery::is_replacement() const { return team_ && !team_->is_connected(); }

void Recovery::commit(std::int64_t step, const SourceLocation& where) {
  const CallSite site(where);
  if (!team_) return;
  kept_.push_back({step, state_.snapshot(step)});
  team_->gather_texts("", "commit");  // waits for all workers, because not every snapshot does
  if (kept_.size() > kCommitsKept) kept_.pop_front();
  num_repeats_ = 0;
}

void Recovery::run(const std::function<void()>& loop) {
  if (!team_) return loop();
  if (is_replacement()) roll_back();  // this process replaces one that died
  for (;;) {
    try {
      if (kept_.empty()) commit(0);
      loop();
      return;
    } catch (const std::exception& error) {
      if (!is_of_a_loss(error) || ++num_repeats_ > kMostRepeats) throw;
      log_warning(concat("worker ", team_->worker(), ": ", error.what(),
                         "; will roll back to the last commit once all workers are connected"));
    }
    roll_back();
  }
}

/// Returns true if a lost worker or connection caused the error. A connection may break before the
/// job detects the loss. Errors with other codes come from the program itself.
bool Recovery::is_of_a_loss(const std::exception& error) const {
  const auto* const own = dynamic_cast<const Error*>(&error);
  if (!own) return false;
  const bool may_be = own->code() == ErrorCode::kUnavailable ||
                      own->code() == ErrorCode::kAborted ||
                      own->code() == ErrorCode::kDeadlineExceeded;
  return may_be && team_->may_reconnect(*own, kPatience);
}

void Recovery::roll_back() {
  const TimePoint deadline = deadline_after(Clock::system().now(), options_.rejoin_timeout);
  while (!try_roll_back(deadline)) {
  }
  ++num_recoveries_;
}

/// Rolls back all workers. Returns false if another worker or connection is lost meanwhile.
bool Recovery::try_roll_back(TimePoint deadline) {
  try {
    team_->reconnect(deadline);
    std::string own;
    for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {
      own += concat(own.empty() ? "" : " ", kept->step);
    }
    const std::vector<std::string> all = team_->gather_texts(own, "commits");
    if (const auto step = newest_of_all(all)) {
      restore(*step, all);
      log_warning(concat("worker ", team_->worker(), ": continues after step ", *step));
    } else {
      restart();
    }
    return true;
  } catch (const std::exception& error) {
    if (!is_of_a_loss(error) || Clock::system().now() > deadline) throw;
    return false;
  }
}

void Recovery::restart() {
  log_warning(concat("worker ", team_->worker(),
                     ": all workers were restarted, so none has the state in memory; they "
                     "resume from disk, or start over"));
  if (options_.restore_from_disk) options_.restore_from_disk();
  kept_ = {{0, state_.snapshot()}};
  Hasher hasher;
  hasher.update(Checkpoint::to_bytes(kept_.front().state));
  const std::vector<std::string> hashes = team_->gather_texts(hasher.hex_digest(), "first state");
  for (std::size_t w = 1; w < hashes.size(); ++w) {
    if (hashes[w] == hashes[0]) continue;
    fail(ErrorCode::kFailedPrecondition, "Recovery: workers 0 and ", w,
         " begin with different states; expected the same program, seed and checkpoints");
  }
}

void Recovery::restore(std::int64_t step, const std::vector<std::string>& commits) {
  std::vector<int> takers;
  int giver = -1;  // the first worker that has the commit
  for (std::size_t w = 0; w < commits.size(); ++w) {
    const bool has_it = std::ranges::count(steps_of(commits[w]), step) > 0;
    if (!has_it) takers.push_back(static_cast<int>(w));
    if (has_it && giver < 0) giver = static_cast<int>(w);
  }
  const auto own = std::ranges::find(kept_, step, &Kept::step);
  const auto taken =
      internal::transfer_state(*team_, giver, takers, own == kept_.end() ? nullptr : &own->state);
  state_.restore(taken ? *taken : own->state);
  kept_ = {{step, state_.snapshot(step)}};  // on all workers, because snapshot() may be collective
}

CheckpointOptions checkpoint_options(Strategy& strategy) {
  CheckpointOptions options{.writes = strategy.is_chief()};
  if (internal::WorkerTeam* const team = team_of_several(strategy)) {
    options.from_writer = [team](const std::string& own) {
      return team->broadcast_text(own, 0, "restore a checkpoint");
    };
    options.worker = team->worker();
    options.connect = [team]() -> ExchangeTexts {
      // Uses a separate group, because background saving runs concurrently with the team's other
      // calls.
      std::vector<int> all(static_cast<std::size_t>(team->num_workers()));
      std::iota(all.begin(), all.end(), 0);
      return [group = std::shared_ptr(team->make_group(all, "a checkpoint in parts"))](
                 const std::string& own) {
        return internal::gather_texts(*group, own, "a checkpoint in parts");
      };
    };
  }
  return options;
}

}  // namespace tutti
