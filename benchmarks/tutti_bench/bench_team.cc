// Implements pinned threads and the timing of their work.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_team.h"

#include <sched.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/clock.h"

namespace tutti::bench {
namespace {

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cores.push_back(cpu);
  }
  return cores;
}

// A thread that cannot be pinned may run on any core, which is slower but not wrong.
void pin_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int core_of(int number, const std::vector<int>& cores) {
  return cores[static_cast<std::size_t>(number) % cores.size()];
}

void pause_once() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

struct Ball {
  alignas(64) std::atomic<int> thrown{0};
  alignas(64) std::atomic<int> returned{0};
};

}  // namespace

PinnedThread::PinnedThread(int number) : before_(usable_cores()) {
  pin_to({core_of(number, before_)});
}

PinnedThread::~PinnedThread() { pin_to(before_); }

SpinBarrier::SpinBarrier(int num_threads)
    : num_threads_(num_threads), num_spins_(num_threads <= num_hardware_threads() ? 2'000 : 0) {}

void SpinBarrier::wait() {
  const unsigned generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int i = 0; generation_.load(std::memory_order_acquire) == generation; ++i) {
    if (i < num_spins_) {
      pause_once();
      continue;
    }
    if (aborted_.load())
      fail(ErrorCode::kAborted, "tutti bench: another thread of this measurement failed");
    sched_yield();
  }
}

BenchTeam::BenchTeam(int size) {
  const std::vector<int> cores = usable_cores();
  for (int t = 0; t < size; ++t) {
    const int core = core_of(t, cores);
    threads_.push_back(Executor::system().start(concat("bench-", t), [this, t, core] {
      pin_to({core});
      work(t);
    }));
  }
}

BenchTeam::~BenchTeam() {
  MutexLock lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

void BenchTeam::work(int thread) {
  std::uint64_t done = 0;
  for (;;) {
    const std::function<void(int)>* job = nullptr;
    {
      MutexLock lock(mutex_);
      const auto has_news = [&]() TUTTI_REQUIRES(mutex_) { return ends_ || job_number_ != done; };
      while (!changed_.wait_for(mutex_, std::chrono::hours(1), has_news)) {
      }
      if (ends_) return;
      done = job_number_;
      job = job_;
    }
    std::exception_ptr failure;
    try {
      (*job)(thread);
    } catch (...) {
      failure = std::current_exception();
    }
    finish_job(std::move(failure));
  }
}

void BenchTeam::finish_job(std::exception_ptr failure) {
  MutexLock lock(mutex_);
  if (failure) {
    barrier_->abort();
    if (!failure_) failure_ = std::move(failure);
  }
  if (--num_running_ == 0) changed_.notify_all();
}

void BenchTeam::run(const std::function<void(int thread)>& job) {
  barrier_ = std::make_unique<SpinBarrier>(size());
  MutexLock lock(mutex_);
  job_ = &job;
  num_running_ = size();
  ++job_number_;
  changed_.notify_all();
  const auto all_done = [&]() TUTTI_REQUIRES(mutex_) { return num_running_ == 0; };
  while (!changed_.wait_for(mutex_, std::chrono::hours(1), all_done)) {
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

CallPlan plan_calls(int iterations, int warm_up, std::size_t num_bytes) {
  constexpr double kSeconds = 0.02;
  constexpr double kSecondsPerBatch = 100e-6;
  const double guess = 1e-6 + static_cast<double>(num_bytes) / 8e9;
  const double calls = std::clamp(std::round(kSeconds / guess), 3.0, 4'000.0);
  const int total = iterations > 0 ? iterations : static_cast<int>(calls);
  CallPlan plan;
  plan.warm_up = warm_up;
  plan.calls = std::clamp(static_cast<int>(std::ceil(kSecondsPerBatch / guess)), 1, total);
  plan.batches = std::max(1, total / plan.calls);
  return plan;
}

namespace {

/// Times of each thread in each batch.
class BatchTimes {
 public:
  BatchTimes(int num_threads, int num_batches)
      : seconds_(static_cast<std::size_t>(num_threads),
                 std::vector<double>(static_cast<std::size_t>(num_batches))) {}
  double& at(int thread, int batch) {
    return seconds_[static_cast<std::size_t>(thread)][static_cast<std::size_t>(batch)];
  }
  std::vector<double> slowest() const {
    std::vector<double> result = seconds_.front();
    for (const std::vector<double>& of_thread : seconds_) {
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = std::max(result[i], of_thread[i]);
    }
    return result;
  }

 private:
  std::vector<std::vector<double>> seconds_;
};

}  // namespace

std::vector<double> time_calls(BenchTeam& team, const CallPlan& plan,
                               const std::function<void(int thread)>& call) {
  BatchTimes times(team.size(), plan.batches);
  team.run([&](int thread) {
    const Clock& clock = Clock::system();
    for (int i = 0; i < plan.warm_up; ++i) call(thread);
    for (int batch = 0; batch < plan.batches; ++batch) {
      team.barrier().wait();
      const TimePoint begin = clock.now();
      for (int i = 0; i < plan.calls; ++i) call(thread);
      times.at(thread, batch) = seconds_between(begin, clock.now()) / plan.calls;
    }
  });
  return times.slowest();
}

double ping_pong_nanoseconds() {
  constexpr int kRoundTrips = 50'000;
  if (usable_cores().size() < 2) return 0.0;
  BenchTeam team(2);
  Ball ball;
  double seconds = 0.0;
  team.run([&](int thread) {
    team.barrier().wait();
    const TimePoint begin = Clock::system().now();
    for (int i = 1; i <= kRoundTrips; ++i) {
      if (thread == 0) ball.thrown.store(i, std::memory_order_release);
      auto& awaited = thread == 0 ? ball.returned : ball.thrown;
      while (awaited.load(std::memory_order_acquire) != i) {
      }
      if (thread == 1) ball.returned.store(i, std::memory_order_release);
    }
    if (thread == 0) seconds = seconds_between(begin, Clock::system().now());
  });
  return 1e9 * seconds / kRoundTrips;
}

const char* place_of_cores(double nanoseconds) {
  if (nanoseconds == 0.0) return "one core";
  return nanoseconds < 250.0 ? "near" : nanoseconds < 1000.0 ? "far" : "busy";
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace tutti::bench
