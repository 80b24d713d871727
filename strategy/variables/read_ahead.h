// Read-ahead of variables: gathers from several workers that start before the step reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// In-progress gather from several workers.
struct StartedGather {
  /// Waits, and returns the gathered elements on the host. Must be called once. Throws the same
  /// errors as Communicator.
  Tensor wait();

  WorkerTeam& team;
  Tensor own;  // elements that this worker sends
  MutableTensor all;
  CollectiveHandle handle;  // destroyed first, because it waits while the memory is in use
};

/// Variable whose elements are gathered from several workers.
class GatheredVariable {
 public:
  /// Starts gathering the elements, each cast to `dtype` by its owner. Collective.
  virtual StartedGather start_gather(DType dtype) const = 0;
  /// Returns a number that changes with each write. Thread-safe.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

 protected:
  ~GatheredVariable() = default;
  /// Must be called on every write. Thread-safe.
  void change_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> version_{0};
};

/// Prefetcher that starts gathers ahead of the reads that need them. Records the reads of a run in
/// order. While the next run repeats them, each read starts the gather for the following read. The
/// started gathers depend only on this order, which is the same on all workers, so all workers
/// start the same gathers. After a deviation from the previous run, the remaining reads start no
/// gathers. Keeps at most one value that has not been read yet. Only one thread at a time may call
/// read(); forget() is thread-safe.
class ReadAhead {
 public:
  explicit ReadAhead(std::shared_ptr<WorkerTeam> team) : team_(std::move(team)) {}

  /// Must be called before each run, after the workers are connected.
  void begin_run();
  /// Returns the gathered value of `variable`, with elements of type `dtype`. Collective.
  Tensor read(const GatheredVariable& variable, DType dtype);
  /// Must be called before the variable is destroyed.
  void forget(const GatheredVariable& variable);

 private:
  struct Read {
    const GatheredVariable* variable;
    DType dtype;
    bool operator==(const Read&) const = default;
  };
  struct Begun {
    Read read;
    std::uint64_t version;  // version of the variable when the gather started
    StartedGather gather;
  };
  Tensor take_begun(const Read& read) TUTTI_REQUIRES(mutex_);

  const std::shared_ptr<WorkerTeam> team_;
  Mutex mutex_;
  std::uint64_t connection_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<Read> reads_ TUTTI_GUARDED_BY(mutex_);  // reads of this run so far
  /// Reads of the previous run; empty if this run's reads differ.
  std::vector<Read> before_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Begun> begun_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
