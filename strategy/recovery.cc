// Goes on with training when a worker dies.
// SPDX-License-Identifier: Apache-2.0
//
// A commit reads all variables, which for ON_READ ones is a meeting of all workers; so a worker
// that has committed step n knows that all others have ended step n, and have committed n - 1. Two
// commits are kept: whatever moment a worker dies at, the others have one in common.
#include "tutti/strategy/recovery.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tutti/core/hash.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/local_strategy.h"
#include "tutti/strategy/multi_worker/worker_team.h"

namespace tutti {
namespace {

constexpr std::size_t kCommitsKept = 2;
/// Longer than it takes to find a worker that is stopped.
constexpr Duration kPatience = std::chrono::seconds(4);

internal::WorkerTeam* team_of(Strategy& strategy) {
  auto* const local = dynamic_cast<LocalStrategy*>(&strategy);
  return local && local->num_workers() > 1 ? local->team() : nullptr;
}

/// The commits of a worker, newest first: "42 41"; "" for a new process.
std::vector<std::int64_t> steps_of(const std::string& text) {
  std::vector<std::int64_t> steps;
  const char* next = text.data();
  const char* const end = next + text.size();
  for (std::int64_t step = 0; next != end;) {
    const auto [after, error] = std::from_chars(next, end, step);
    if (error != std::errc()) break;
    steps.push_back(step);
    next = after == end ? end : after + 1;
  }
  return steps;
}

void say_rate(int worker, int giver, std::size_t bytes, Duration duration) {
  const double mb = static_cast<double>(bytes) / 1e6;
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  char text[96];
  std::snprintf(text, sizeof text, "%.1f MB in %.3f s, %.0f MB/s", mb, seconds, mb / seconds);
  log_info(concat("worker ", worker, ": has the state of worker ", giver, ": ", text));
}

}  // namespace

Recovery::Recovery(Strategy& strategy, Checkpoint state, RecoveryOptions options)
    : strategy_(strategy), team_(team_of(strategy)), state_(std::move(state)), options_(options) {}

bool starts_workers_again() {
  const char* const restarts = std::getenv("TUTTI_MAX_RESTARTS");
  return restarts && *restarts != '\0' && std::string_view(restarts) != "0";
}

bool Recovery::is_replacement() const { return team_ && !team_->is_connected(); }

void Recovery::commit(std::int64_t step) {
  if (!team_) return;
  kept_.push_back({step, state_.snapshot(step)});
  team_->gather_texts("", "commit");  // without ON_READ variables nobody has met yet
  if (kept_.size() > kCommitsKept) kept_.pop_front();
}

void Recovery::run(const std::function<void()>& loop) {
  if (!team_) return loop();
  if (is_replacement()) go_back();  // a process that takes the place of one that died
  for (;;) {
    try {
      if (kept_.empty()) commit(0);
      loop();
      return;
    } catch (const std::exception& error) {
      if (!is_of_a_lost_worker(error)) throw;
      log_warning(concat("worker ", team_->worker(), ": ", error.what(),
                         "; going back to the last commit when all workers are here"));
    }
    go_back();
  }
}

/// A connection breaks before the job has found out why; other errors are the program's own.
bool Recovery::is_of_a_lost_worker(const std::exception& error) const {
  const auto* const own = dynamic_cast<const Error*>(&error);
  if (!own) return false;
  const bool may_be = own->code() == ErrorCode::kUnavailable ||
                      own->code() == ErrorCode::kAborted ||
                      own->code() == ErrorCode::kDeadlineExceeded;
  return may_be && team_->has_lost_a_worker(kPatience);
}

void Recovery::go_back() {
  const TimePoint deadline = deadline_after(Clock::system().now(), options_.rejoin_timeout);
  while (!go_back_once(deadline)) {
  }
  ++num_recoveries_;
}

/// False: another worker was lost meanwhile.
bool Recovery::go_back_once(TimePoint deadline) {
  try {
    team_->reconnect(deadline);
    std::string own;
    for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {
      own += concat(own.empty() ? "" : " ", kept->step);
    }
    const std::vector<std::string> all = team_->gather_texts(own, "commits");
    std::optional<std::int64_t> step;
    int giver = 0;
    bool any_without = false;
    for (std::size_t w = 0; w < all.size(); ++w) {
      const std::vector<std::int64_t> steps = steps_of(all[w]);
      any_without = any_without || steps.empty();
      if (steps.empty() || (step && *step <= steps.front())) continue;
      step = steps.front();
      giver = static_cast<int>(w);
    }
    if (step) {
      restore(*step, giver, any_without);
      log_info(concat("worker ", team_->worker(), ": goes on after step ", *step));
    } else {
      begin_anew();
    }
    return true;
  } catch (const std::exception& error) {
    if (!is_of_a_lost_worker(error) || Clock::system().now() > deadline) throw;
    return false;
  }
}

void Recovery::begin_anew() {
  log_warning(concat("worker ", team_->worker(),
                     ": all workers were started again, so none has the state in memory; they "
                     "begin with what is on the disk, or anew"));
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

void Recovery::restore(std::int64_t step, int giver, bool any_without) {
  const auto own = std::ranges::find(kept_, step, &Kept::step);
  const TimePoint begin = Clock::system().now();
  std::string bytes;
  if (any_without) {
    if (team_->worker() == giver) bytes = state_.to_bytes(own->state);
    bytes = team_->broadcast_text(bytes, giver, "state of a commit");
  }
  if (own != kept_.end()) {
    state_.restore(own->state);
  } else {
    state_.restore_from_bytes(bytes, concat("the state of worker ", giver));
    say_rate(team_->worker(), giver, bytes.size(), Clock::system().now() - begin);
  }
  kept_ = {{step, state_.snapshot(step)}};  // by all: it may be a meeting
}

}  // namespace tutti
