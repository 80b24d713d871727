// Threads for measurements: each runs on its own core, and all start together repeatedly.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::bench {

/// Barrier that synchronizes threads within tens of nanoseconds. Threads spin, and yield after a
/// while, or immediately if there are fewer cores than threads.
class SpinBarrier {
 public:
  explicit SpinBarrier(int num_threads);
  /// Waits for all threads. Throws kAborted if abort() was called.
  void wait();
  void abort() noexcept { aborted_.store(true); }

 private:
  const int num_threads_;
  const int num_spins_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
  std::atomic<bool> aborted_{false};
};

/// Team of `size` threads. Thread t runs on core t of the cores available to this process, modulo
/// their number. Threads sleep between jobs.
class BenchTeam {
 public:
  explicit BenchTeam(int size);
  ~BenchTeam();
  BenchTeam(const BenchTeam&) = delete;
  BenchTeam& operator=(const BenchTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  /// Returns the barrier of the current job.
  SpinBarrier& barrier() { return *barrier_; }
  /// Runs job(0) ... job(size - 1), each on its own thread, and waits for all of them. If jobs
  /// fail, rethrows the original exception, not the aborts that it caused.
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
  std::vector<std::unique_ptr<Thread>> threads_;  // last member, so that threads are joined first
};

/// Scope that binds the calling thread to one of the cores that it may use: core `number`, modulo
/// their count.
class PinnedThread {
 public:
  explicit PinnedThread(int number);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<int> before_;
};

/// Plan of a measurement: `warm_up` untimed calls, then `batches` batches of `calls` calls.
struct CallPlan {
  int warm_up = 0;
  int batches = 1;
  int calls = 1;
};
/// Plans `iterations` calls or, if that is 0, as many calls as fit into about 20 ms, assuming that
/// each takes 1 us plus the transfer time of its bytes at 8 GB/s. Batches take at least 0.1 ms, so
/// that reading the clock costs little.
CallPlan plan_calls(int iterations, int warm_up, std::size_t num_bytes);

/// Returns the seconds per call in each batch, measured on the slowest thread, because every thread
/// needs the result.
std::vector<double> time_calls(BenchTeam& team, const CallPlan& plan,
                               const std::function<void(int thread)>& call);

/// Returns the round-trip time of a cache line between two cores, in nanoseconds, or 0 if there is
/// only one core.
double ping_pong_nanoseconds();
/// Returns the relation of two cores: "near" (they share a cache), "far", "busy" (other programs
/// use them) or "one core".
const char* place_of_cores(double nanoseconds);

double median_of(std::vector<double> values);

}  // namespace tutti::bench
