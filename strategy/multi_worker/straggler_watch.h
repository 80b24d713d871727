// Detection of slow workers from the time that each worker waits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/multi_worker/straggler.h"

namespace tutti::internal {

/// Detector of slow workers; measures how long this worker waits. The waiting times of all workers
/// are sent with the sums of gradients, as a few additional numbers. A slow worker waits the least;
/// the additional time that the other workers wait is attributed to it. A worker is reported only
/// if it is slow in several consecutive windows of steps. Thread-safe.
class StragglerWatch {
 public:
  static constexpr std::int64_t kWindow = 5;
  static constexpr std::int64_t kWindows =
      3;  // any 20 steps contain at least this many full windows
  /// Shortest wait that is reported, in seconds per step.
  static constexpr double kLeastWait = 0.001;

  explicit StragglerWatch(const StragglerOptions& options, Clock& clock = Clock::system());

  /// Scope whose duration counts as waiting.
  class Waiting {
   public:
    explicit Waiting(StragglerWatch& watch) : watch_(watch), begin_(watch.clock_.now()) {}
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StragglerWatch& watch_;
    const TimePoint begin_;
  };

  /// Returns the time, in seconds, that this worker has spent waiting since the last call.
  double take_wait();
  /// Records one step; `waits` holds the result of take_wait() on each worker. Returns a straggler
  /// if this step completes a streak of kWindows slow windows and the last report is at least
  /// repeat_after_steps old.
  std::optional<Straggler> note(std::span<const double> waits);
  /// Returns the last straggler that note() returned.
  std::optional<Straggler> last() const;
  /// Resets the measurement after a reconnect.
  void restart();

 private:
  /// Consecutive windows in which the same worker was slow.
  struct Streak {
    int worker = 0;
    std::int64_t windows = 0;
    double waited = 0.0;  // seconds that the other workers waited, on average
    double seconds = 0.0;
  };
  std::optional<Straggler> find_straggler(double seconds) TUTTI_REQUIRES(mutex_);

  const StragglerOptions options_;
  Clock& clock_;
  std::atomic<std::int64_t> waited_ = 0;  // nanoseconds
  mutable Mutex mutex_;
  std::vector<double> waits_ TUTTI_GUARDED_BY(mutex_);  // seconds waited in this window, by worker
  std::int64_t steps_of_window_ TUTTI_GUARDED_BY(mutex_) = 0;
  TimePoint window_begin_ TUTTI_GUARDED_BY(mutex_);
  Streak streak_ TUTTI_GUARDED_BY(mutex_);
  std::int64_t steps_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Straggler> last_ TUTTI_GUARDED_BY(mutex_);
};

/// Returns "worker 2 is slow: the other workers waited 78 % of the last 15 steps for it, ...".
std::string to_string(const Straggler& straggler, const std::string& name);

}  // namespace tutti::internal
