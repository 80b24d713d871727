// Implements StragglerWatch.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/straggler_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <utility>

#include "tutti/core/text.h"

namespace tutti::internal {

StragglerWatch::StragglerWatch(const StragglerOptions& options, Clock& clock)
    : options_(options), clock_(clock) {}

StragglerWatch::Waiting::~Waiting() {
  const Duration waited = watch_.clock_.now() - begin_;
  watch_.waited_.fetch_add(waited.count(), std::memory_order_relaxed);
}

double StragglerWatch::take_wait() {
  const Duration waited(waited_.exchange(0, std::memory_order_relaxed));
  return std::chrono::duration<double>(waited).count();
}

void StragglerWatch::restart() {
  MutexLock lock(mutex_);
  waited_ = 0;
  waits_.clear();
  steps_of_window_ = 0;
  streak_ = {};
}

std::optional<Straggler> StragglerWatch::last() const {
  MutexLock lock(mutex_);
  return last_;
}

std::optional<Straggler> StragglerWatch::note(std::span<const double> waits) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.now();
  ++steps_;
  if (waits_.size() != waits.size()) {  // timing starts at the end of the first step
    waits_.assign(waits.size(), 0.0);
    steps_of_window_ = 0;
    window_begin_ = now;
    return std::nullopt;
  }
  for (std::size_t w = 0; w < waits.size(); ++w) waits_[w] += waits[w];
  if (++steps_of_window_ < kWindow) return std::nullopt;
  const std::optional<Straggler> found = find_straggler(seconds_between(window_begin_, now));
  std::ranges::fill(waits_, 0.0);
  steps_of_window_ = 0;
  window_begin_ = now;
  if (found) last_ = found;
  return found;
}

std::optional<Straggler> StragglerWatch::find_straggler(double seconds) {
  const auto slowest = std::ranges::min_element(waits_);
  const int worker = static_cast<int>(slowest - waits_.begin());
  const double all = std::accumulate(waits_.begin(), waits_.end(), 0.0);
  const auto others = static_cast<double>(waits_.size() - 1);
  const double waited = others > 0.0 ? (all - *slowest) / others - *slowest : 0.0;
  const bool is_slow = waited >= std::max(options_.share * seconds, kLeastWait * kWindow);
  if (!is_slow || worker != streak_.worker) streak_ = {};
  if (!is_slow) return std::nullopt;
  streak_ = {worker, streak_.windows + 1, streak_.waited + waited, streak_.seconds + seconds};
  if (streak_.windows < kWindows) return std::nullopt;
  const Streak found = std::exchange(streak_, {});
  if (last_ && steps_ - last_->step < options_.repeat_after_steps) return std::nullopt;
  return Straggler{worker, std::min(found.waited / found.seconds, 1.0),
                   found.waited / static_cast<double>(kWindow * kWindows), steps_};
}

std::string to_string(const Straggler& straggler, const std::string& name) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%.0f %% of the last %d steps for it, %.1f ms per step",
                100.0 * straggler.share,
                static_cast<int>(StragglerWatch::kWindow * StragglerWatch::kWindows),
                1e3 * straggler.seconds_per_step);
  return concat(name, " is slow: the other workers waited ", numbers,
                "; is its machine busy, or its input late? If machines differ in speed, use "
                "replica_weights");
}

}  // namespace tutti::internal
