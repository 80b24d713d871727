// MPI in this process: initialised once, used politely, finalised by whoever initialised it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/sync.h"

namespace tutti::internal {

/// Lives from the first get() to the end of the process. Threads: any.
class MpiRuntime {
 public:
  /// The first call initialises MPI with MPI_THREAD_MULTIPLE, unless the program has; every process
  /// of the job must make it. What was initialised here is finalised when the program ends with
  /// exit code 0. A program that ends otherwise leaves that undone, so that its launcher ends the
  /// other processes. Throws as mpi_engine() does.
  static MpiRuntime& get();

  explicit MpiRuntime(int thread_level);
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// This process among all of the job.
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// MPI_COMM_WORLD's processes; errors are returned and no other code sends there.
  MPI_Comm comm() const { return comm_; }

  /// Throws when MPI was finalised, and the reason of retire().
  void require_usable();
  bool is_usable() noexcept;
  /// From now on this process makes no MPI call, not even MPI_Finalize. The first reason counts.
  void retire(const std::string& reason) noexcept;

  /// Keeps what MPI may still use until it is finalised.
  void keep(std::shared_ptr<void> used);

  /// Has close_transports() call `close`; its transport may have been closed before.
  void before_finalize(std::function<void()> close);
  /// Ends the transports that a program leaves open when it exits: MPI_Finalize waits for the other
  /// processes, which may wait for a message of this one.
  void close_transports();

  /// Held around MPI calls: keeps threads apart where MPI cannot.
  class Calls {
   public:
    explicit Calls(MpiRuntime& runtime) {
      if (!runtime.serves_all_threads_) lock_.emplace(runtime.mutex_);
    }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

   private:
    std::optional<MutexLock> lock_;
  };

 private:
  bool serves_all_threads_;
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm comm_ = MPI_COMM_NULL;
  Mutex mutex_;
  std::atomic<bool> is_retired_{false};
  Mutex reason_mutex_;
  std::string reason_ TUTTI_GUARDED_BY(reason_mutex_);
  std::vector<std::shared_ptr<void>> kept_ TUTTI_GUARDED_BY(reason_mutex_);
  std::vector<std::function<void()>> closing_ TUTTI_GUARDED_BY(reason_mutex_);
};

/// Throws kUnavailable with MPI's text when `code` is an error: "mpi: rank 2: MPI_Isend: ...".
void check_mpi(int code, std::string_view function);

/// Looks again and again, first giving way to other threads, then sleeping in between, until
/// `ready()` or the deadline; returns ready().
bool poll_until(TimePoint deadline, const std::function<bool()>& ready);

}  // namespace tutti::internal
