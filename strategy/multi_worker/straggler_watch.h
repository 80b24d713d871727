// Which worker the others wait for: found from how long each waits.
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

/// One worker's part. All learn what each has waited with the sums of gradients, where it is a few
/// numbers more: there is no further message. A slow worker waits least: what others wait beyond
/// that, they wait for it. Looks at windows of steps; only who is slow in several windows in a row
/// is told of. Threads: any.
class StragglerWatch {
 public:
  static constexpr std::int64_t kWindow = 5;
  static constexpr std::int64_t kWindows = 3;  // whole ones among any 20 steps
  /// Less than this per step is not worth a line.
  static constexpr double kLeastWait = 0.001;

  explicit StragglerWatch(const StragglerOptions& options, Clock& clock = Clock::system());

  /// Counts as waiting while it lives.
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

  /// Seconds that this worker has waited since the last call.
  double take_wait();
  /// What take_wait() gave on each worker in a step. A straggler when this step ends a window that
  /// shows one and it may be told of again.
  std::optional<Straggler> note(std::span<const double> waits);
  /// The last one that note() gave.
  std::optional<Straggler> last() const;
  /// The workers were connected anew.
  void begin_anew();

 private:
  /// What windows in a row say.
  struct Streak {
    int worker = 0;
    std::int64_t windows = 0;
    double waited = 0.0;  // seconds, by the others on average
    double seconds = 0.0;
  };
  std::optional<Straggler> look(double seconds) TUTTI_REQUIRES(mutex_);

  const StragglerOptions options_;
  Clock& clock_;
  std::atomic<std::int64_t> waited_ = 0;  // nanoseconds
  mutable Mutex mutex_;
  std::vector<double> waits_ TUTTI_GUARDED_BY(mutex_);  // of the window, by worker
  std::int64_t steps_of_window_ TUTTI_GUARDED_BY(mutex_) = 0;
  TimePoint window_begin_ TUTTI_GUARDED_BY(mutex_);
  Streak streak_ TUTTI_GUARDED_BY(mutex_);
  std::int64_t steps_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Straggler> last_ TUTTI_GUARDED_BY(mutex_);
};

/// "worker 2 is slow: the others waited 78 % of the last 15 steps for it, 41.0 ms a step; ...".
std::string to_string(const Straggler& straggler, const std::string& name);

}  // namespace tutti::internal
