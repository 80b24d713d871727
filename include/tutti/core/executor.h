// Thread interface; code outside core/ starts threads only through it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tutti {

/// A started thread. The destructor joins it.
class Thread {
 public:
  virtual ~Thread() = default;
  virtual void join() = 0;
};

/// Interface for starting threads. start() is thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Starts a thread that debuggers show as `name` (at most 15 characters). `body` must not throw:
  /// an exception that escapes from it ends the process with a message naming the thread.
  virtual std::unique_ptr<Thread> start(std::string name, std::function<void()> body) = 0;

  /// Returns the executor that starts threads of the operating system.
  static Executor& system();
};

/// Returns the number of threads started by Executor::system() that are still running.
int num_running_threads();

/// Returns the number of running threads of Executor::system() that are not in an AsleepScope. A
/// thread is in one while it waits, for example, for a CondVar, RunToken or Thread::join().
int num_awake_threads();

/// Returns true if a thread that Executor::system() did not start (such as main) is in an
/// AsleepScope.
bool user_thread_sleeps();

/// Scope in which the calling thread counts as asleep.
class AsleepScope {
 public:
  AsleepScope();
  ~AsleepScope();
  AsleepScope(const AsleepScope&) = delete;
  AsleepScope& operator=(const AsleepScope&) = delete;
};

/// Returns the number of hardware threads that this process may use (its CPU affinity), at least 1.
int num_hardware_threads();

}  // namespace tutti
