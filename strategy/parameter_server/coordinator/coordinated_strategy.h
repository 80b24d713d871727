// Interface of a strategy that a coordinator runs closures for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "strategy/parameter_server/coordinator/worker_link.h"
#include "tutti/core/sync.h"

namespace tutti {

namespace internal {
class ServerGroup;
class StepRegistry;
}  // namespace internal

/// Implemented by ParameterServerStrategy. The defaults are those of a strategy whose workers are
/// threads. Thread-safe.
class CoordinatedStrategy {
 public:
  virtual ~CoordinatedStrategy() = default;
  virtual int num_workers() const = 0;
  /// "worker 1 (127.0.0.1:4711)".
  virtual std::string worker_name(int worker) const { return concat("worker ", worker); }

  /// Runs `body` on the calling thread, which belongs to the closure's worker and has its
  /// ClosureScope: reads and writes go to the servers in the closure's name. Returns when every
  /// server has confirmed every change: only then does the closure count as finished. Failures of
  /// servers and of the way to them come out as OriginError.
  virtual void run_closure(const std::function<void()>& body) = 0;

  /// How to reach a worker; nullptr: it is a thread of this process.
  virtual std::unique_ptr<internal::WorkerLink> connect_worker(int, internal::StepRegistry&) {
    return nullptr;
  }
  /// Returns true if this task is a worker or a server of a chief elsewhere.
  virtual bool must_serve() const { return false; }
  /// There: serves until the chief is done or lost; the exit code for this process.
  virtual int serve(internal::StepRegistry&) { return 0; }

  /// On the chief: calls `told`, from any thread, when the job has given this coordinator up, as
  /// long as the returned object lives. No call outlives that.
  [[nodiscard]] virtual std::shared_ptr<void> when_over(
      std::function<void(const std::string& why)>) {
    return nullptr;
  }
  /// Its servers, which outlive the coordinator; nullptr: it has none that can be saved.
  virtual internal::ServerGroup* server_group() { return nullptr; }

  /// Where coordinators of this strategy find each other: there is one per strategy.
  struct CoordinatorSlot {
    Mutex mutex;
    std::weak_ptr<void> coordinator TUTTI_GUARDED_BY(mutex);
    /// Where the next coordinator begins to count: servers remember closures of the former ones.
    std::uint64_t next_number TUTTI_GUARDED_BY(mutex) = 0;
    std::uint64_t next_generation TUTTI_GUARDED_BY(mutex) = 1;
  };
  CoordinatorSlot& coordinator_slot() { return slot_; }

 private:
  CoordinatorSlot slot_;
};

}  // namespace tutti
