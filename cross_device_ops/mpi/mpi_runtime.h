// The MPI library in this process: initialised once, and finalised only if tutti initialised it.
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

/// MPI state of this process. Lives from the first get() to the end of the process. Thread-safe.
class MpiRuntime {
 public:
  /// Initialises MPI with MPI_THREAD_MULTIPLE on the first call, unless the program has already
  /// done so. Every process of the job must make this call. If tutti initialised MPI, it finalises
  /// MPI when the program ends with exit code 0, but not with another exit code, so that the
  /// launcher ends the other processes. Throws the same errors as mpi_engine().
  static MpiRuntime& get();

  explicit MpiRuntime(int thread_level);
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// Returns this process's number among all processes of the job.
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns tutti's duplicate of MPI_COMM_WORLD, on which MPI functions return error codes.
  MPI_Comm comm() const { return comm_; }

  /// Throws if MPI was finalised or retire() was called; in the latter case the error has the
  /// reason given to retire().
  void require_usable();
  bool is_usable() noexcept;
  /// Forbids further MPI calls by this process, including MPI_Finalize. Only the first reason is
  /// kept.
  void retire(const std::string& reason) noexcept;

  /// Keeps memory alive until MPI is finalised, because MPI may still use it.
  void keep(std::shared_ptr<void> used);

  /// Registers `close`, which close_transports() will call, even if the transport is already closed
  /// by then.
  void before_finalize(std::function<void()> close);
  /// Closes the transports that are still open when the program exits: MPI_Finalize waits for the
  /// other processes, which may in turn be waiting for a message from this process.
  void close_transports();

  /// Guard around MPI calls that serialises threads if MPI does not support concurrent calls.
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

/// Throws kUnavailable, as "mpi: rank 2: MPI_Isend failed: <reason>", if `code` is an error.
void check_mpi(int code, std::string_view function);

/// Polls `ready()` until it is true or the deadline has passed, first yielding to other threads,
/// then sleeping between polls; returns ready().
bool poll_until(TimePoint deadline, const std::function<bool()>& ready);

}  // namespace tutti::internal
