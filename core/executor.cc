// Threads and clocks of the operating system.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/executor.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "core/run_token.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

std::atomic<int> running_threads{0};
std::atomic<int> sleeping_threads{0};
std::atomic<int> sleeping_outside{0};  // sleeping threads that this executor did not start
thread_local bool is_counted = false;

[[noreturn]] void end_process(const std::string& name, const char* reason) {
  log(LogLevel::kError,
      concat("thread '", name, "': an exception escaped from its function: ", reason));
  std::abort();
}

void run_body(const std::string& name, const std::function<void()>& body) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  is_counted = true;
  try {
    body();
  } catch (const std::exception& error) {
    end_process(name, error.what());
  } catch (...) {
    end_process(name, "unknown type");
  }
  running_threads.fetch_sub(1, std::memory_order_relaxed);
}

class SystemThread final : public Thread {
 public:
  explicit SystemThread(std::thread thread) : thread_(std::move(thread)) {}
  ~SystemThread() override { SystemThread::join(); }

  void join() override {
    if (!thread_.joinable()) return;
    BlockedScope blocked;
    const AsleepScope asleep;
    thread_.join();
  }

 private:
  std::thread thread_;
};

class SystemExecutor final : public Executor {
 public:
  std::unique_ptr<Thread> start(std::string name, std::function<void()> body) override {
    const int others = running_threads.fetch_add(1, std::memory_order_relaxed);
    try {
      return std::make_unique<SystemThread>(
          std::thread([name, body = std::move(body)] { run_body(name, body); }));
    } catch (const std::system_error& error) {
      running_threads.fetch_sub(1, std::memory_order_relaxed);
      fail(ErrorCode::kResourceExhausted, "thread '", name, "': cannot be started in addition to ",
           others, " threads of this process: ", error.code().message(),
           "; raise the limit on processes (ulimit -u, pids.max of the container) or on memory "
           "(ulimit -v), or use fewer replicas, processes or data threads");
    }
  }
};

}  // namespace

Executor& Executor::system() {
  static SystemExecutor executor;
  return executor;
}

int num_running_threads() { return running_threads.load(std::memory_order_relaxed); }

int num_awake_threads() {
  return num_running_threads() - sleeping_threads.load(std::memory_order_relaxed);
}

bool user_thread_sleeps() { return sleeping_outside.load(std::memory_order_relaxed) > 0; }

AsleepScope::AsleepScope() {
  (is_counted ? sleeping_threads : sleeping_outside).fetch_add(1, std::memory_order_relaxed);
}
AsleepScope::~AsleepScope() {
  (is_counted ? sleeping_threads : sleeping_outside).fetch_sub(1, std::memory_order_relaxed);
}

int num_hardware_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Uses the affinity of the main thread, because the calling thread may be pinned to one core.
  if (sched_getaffinity(getpid(), sizeof(allowed), &allowed) == 0) {
    if (const int count = CPU_COUNT(&allowed); count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

// The machine's clocks.

namespace {

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  void sleep_until(TimePoint time) override {
    if (time <= now()) return;
    BlockedScope blocked;
    std::this_thread::sleep_until(time);
  }
};

}  // namespace

Clock& Clock::system() {
  static SystemClock clock;
  return clock;
}

TimePoint coarse_now() {
#if defined(CLOCK_MONOTONIC_COARSE)
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
#else
  return Clock::system().now();
#endif
}

double wall_time_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tutti
