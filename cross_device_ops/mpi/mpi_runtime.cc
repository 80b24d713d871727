// Initialization and finalization of MPI.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/mpi/mpi_runtime.h"

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/run_token.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti {
namespace internal {
namespace {

constexpr Duration kShortestSleep = std::chrono::microseconds(50);
constexpr Duration kLongestSleep = std::chrono::milliseconds(1);

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

struct Holder {
  Mutex mutex;
  std::unique_ptr<MpiRuntime> runtime TUTTI_GUARDED_BY(mutex);
  std::atomic<bool> may_finalize{true};
};

Holder& holder() {
  static Holder instance;
  return instance;
}

/// Finalises MPI unless the process failed: a failed process would wait for the other processes,
/// which wait for it. A process that calls exit(0) within a step could wait in the same way, so it
/// closes its transports first.
void finalize_at_exit(int status, void*) {
  if (status != 0 || !holder().may_finalize || is_finalized()) return;
  MpiRuntime* runtime = nullptr;
  {
    MutexLock lock(holder().mutex);
    runtime = holder().runtime.get();
  }
  if (runtime) runtime->close_transports();
  MPI_Finalize();
}

void require_not_finalized() {
  if (!is_finalized()) return;
  fail(ErrorCode::kFailedPrecondition,
       "mpi: MPI was finalised and cannot be initialised again; expected MPI_Finalize after the "
       "last transport and communicator; leave MPI_Init and MPI_Finalize to tutti, which finalises "
       "MPI at the end "
       "of the program if it initialised MPI");
}

int initialize() {
  int level = MPI_THREAD_SINGLE;
  if (is_initialized()) {
    MPI_Query_thread(&level);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // Open MPI reports the errors of its non-blocking collectives to this handler.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    holder();  // constructed before on_exit(), so that it outlives the handler
    ::on_exit(finalize_at_exit, nullptr);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    fail(ErrorCode::kFailedPrecondition,
         "mpi: MPI was initialised for a single thread; expected MPI_THREAD_MULTIPLE or "
         "MPI_THREAD_SERIALIZED, got level ",
         level, "; use MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) instead of MPI_Init");
  }
  return level;
}

/// Returns the reason why this process cannot use "mpi", in one line; empty if it can.
std::string why_no_mpi() {
  if (is_finalized()) return "mpi: MPI was finalised";
  if (is_initialized() || is_started_by_mpi()) return {};
  return "mpi: no MPI launcher started this process; expected mpirun or srun, which start one "
         "process per rank; run mpirun -n 2 PROGRAM, or use another operation such as canonical";
}

}  // namespace

MpiRuntime& MpiRuntime::get() {
  Holder& all = holder();
  MutexLock lock(all.mutex);
  require_not_finalized();
  if (!all.runtime) {
    const std::string reason = why_no_mpi();
    if (!reason.empty()) throw Error(ErrorCode::kUnimplemented, reason);
    all.runtime = std::make_unique<MpiRuntime>(initialize());
  }
  return *all.runtime;
}

MpiRuntime::MpiRuntime(int thread_level)
    : serves_all_threads_(thread_level == MPI_THREAD_MULTIPLE) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

void MpiRuntime::require_usable() {
  if (is_retired_) {
    MutexLock lock(reason_mutex_);
    throw Error(ErrorCode::kUnavailable, reason_);
  }
  require_not_finalized();
}

bool MpiRuntime::is_usable() noexcept { return !is_retired_ && !is_finalized(); }

void MpiRuntime::retire(const std::string& reason) noexcept {
  {
    MutexLock lock(reason_mutex_);
    if (reason_.empty()) {
      reason_ = "mpi: rank " + std::to_string(rank_) + " makes no further MPI calls: " + reason;
    }
  }
  is_retired_ = true;
  holder().may_finalize = false;
}

void MpiRuntime::keep(std::shared_ptr<void> used) {
  MutexLock lock(reason_mutex_);
  kept_.push_back(std::move(used));
}

void MpiRuntime::before_finalize(std::function<void()> close) {
  MutexLock lock(reason_mutex_);
  closing_.push_back(std::move(close));
}

void MpiRuntime::close_transports() {
  std::vector<std::function<void()>> closing;
  {
    MutexLock lock(reason_mutex_);
    closing.swap(closing_);
  }
  for (const auto& close : closing) close();
}

void check_mpi(int code, std::string_view function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0, rank = 0;
  MPI_Error_string(code, text, &length);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fail(ErrorCode::kUnavailable, "mpi: rank ", rank, ": ", function, " failed: ", text);
}

bool poll_until(TimePoint deadline, const std::function<bool()>& ready) {
  // MPI does not wake threads. This thread first yields its core; later it sleeps for an eighth of
  // the time that it has waited.
  const TimePoint begin = Clock::system().now();
  for (;;) {
    if (ready()) return true;
    const TimePoint now = Clock::system().now();
    if (now >= deadline) return false;
    const Duration nap = std::min((now - begin) / 8, kLongestSleep);
    if (nap < kShortestSleep && !BlockedScope::current_thread_holds_token()) {
      ::sched_yield();
      continue;
    }
    const AsleepScope asleep;
    Clock::system().sleep_until(std::min(deadline, now + std::max(nap, kShortestSleep)));
  }
}

}  // namespace internal

bool is_started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace tutti
