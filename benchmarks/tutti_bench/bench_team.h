// Threads for measurements: each on its own core, started together repeatedly.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::bench {

/// Synchronizes threads within tens of nanoseconds: they spin, and yield after a while (at once if
/// there are fewer cores than threads).
class SpinBarrier {
 public:
  explicit SpinBarrier(int num_threads);
  /// Throws kAborted after abort() was called.
  void wait();
  void abort() noexcept { aborted_.store(true); }

 private:
  const int num_threads_;
  const int num_spins_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
  std::atomic<bool> aborted_{false};
};

/// `size` threads; number t runs on the t-th core (modulo their number) that this process may use.
/// They sleep between jobs.
class BenchTeam {
 public:
  explicit BenchTeam(int size);
  ~BenchTeam();
  BenchTeam(const BenchTeam&) = delete;
  BenchTeam& operator=(const BenchTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  /// Returns the barrier of the current job.
  SpinBarrier& barrier() { return *barrier_; }
  /// Runs job(0) ... job(size - 1), each on its thread, and waits for all. Rethrows a job's
  /// exception: the first cause rather than the aborts that it triggered.
  void run(const std::function<void(int thread)>& job);

 private:
  void work(int thread);
  void finish_job(std::exception_ptr failure);

  std::unique_ptr<SpinBarrier> barrier_;
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t job_number_ TUTTI_GUARDED_BY(mutex_) = 0;
  int num_running_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool ends_ TUTTI_GUARDED_BY(mutex_) = false;
  const std::function<void(int)>* job_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  std::exception_ptr failure_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Thread>> threads_;  // last: joined first
};

/// Scope that binds the calling thread to the core with this number (modulo their number)
/// among those that it may use.
class PinnedThread {
 public:
  explicit PinnedThread(int number);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<int> before_;
};

/// Timing of calls: `warm_up` untimed ones, then `batches` times `calls` calls in a row.
struct CallPlan {
  int warm_up = 0;
  int batches = 1;
  int calls = 1;
};
/// Plans `iterations` calls, or as many as take about 20 ms at 1 us + 8 GB/s, in batches of at
/// least 0.1 ms, so that the clock's cost is negligible.
CallPlan plan_calls(int iterations, int warm_up, std::size_t num_bytes);

/// Returns seconds per call of each batch for the slowest thread, as all must have the result.
std::vector<double> time_calls(BenchTeam& team, const CallPlan& plan,
                               const std::function<void(int thread)>& call);

/// Returns the nanoseconds of a cache line's round trip between two cores; 0: only one core.
double ping_pong_nanoseconds();
/// Returns "near" (one cache), "far", "busy" (shared with other work) or "one core".
const char* place_of_cores(double nanoseconds);

double median_of(std::vector<double> values);

}  // namespace tutti::bench
