// A replica on a thread: its context during a run, and the services that it shares with other
// replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/replicas/rendezvous.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/strategy/replica_context.h"

namespace tutti {

class Strategy;

namespace internal {

/// Services that the replicas of a strategy share for the strategy's lifetime.
struct ReplicaServices {
  Strategy& strategy;
  std::vector<Device> replica_devices;
  CrossDeviceOps& ops;
  Mutex& ops_mutex;  // held during calls to `ops`, except sums of slices by a sliceable operation
  CommunicationOptions communication;
  std::shared_ptr<WorkerTeam> team = nullptr;  // nullptr if this process has all replicas
  /// Called once, by the leader, after all replicas have applied their updates and before any of
  /// them continues.
  std::function<void()> after_updates = {};
  /// For workers that train independently: the index of this worker's first replica among the
  /// replicas of all workers, and the total number of these replicas. Not used if `num_apart` is 0.
  int first_apart = 0;
  int num_apart = 0;

  int first_number() const { return num_apart > 0 ? first_apart : first_replica(); }
  int num_in_sync() const { return num_apart > 0 ? num_apart : num_replicas(); }
  /// This and the next two functions consider only replicas that exchange values.
  int first_replica() const { return team ? team->first_replica() : 0; }
  int num_workers() const { return team ? team->num_workers() : 1; }
  int num_replicas() const {
    return team ? team->num_replicas() : static_cast<int>(replica_devices.size());
  }
  /// Returns the values of all replicas of all workers, in replica order, given those of this
  /// worker's replicas. `what` is compared between workers.
  ReplicaValues of_all_replicas(ReplicaValues local, std::string_view what) const {
    return team ? team->gather(local, what) : std::move(local);
  }
};

}  // namespace internal

}  // namespace tutti

namespace tutti::internal {

/// Context of one replica during one run, on its own thread.
class LocalReplicaContext final : public ReplicaContext {
 public:
  LocalReplicaContext(ReplicaServices& services, Rendezvous& rendezvous, IdleWork& nested,
                      int replica)
      : services_(services),
        rendezvous_(rendezvous),
        nested_(nested),
        replica_(replica),
        group_(*this) {}

  /// Returns this thread's replica of the strategy that created `variable`; nullptr outside that
  /// strategy's run. In a replica of another strategy, throws kFailedPrecondition with the names of
  /// the variable and the method.
  static LocalReplicaContext* current(const VariableStorage& variable, std::string_view method);

  int replica_id() const override { return services_.first_number() + replica_; }
  int num_replicas_in_sync() const override { return services_.num_in_sync(); }
  /// Returns the number of replicas that exchange values with this one, including itself.
  int num_exchanging() const { return services_.num_replicas(); }
  /// Returns this replica's index within the process.
  int local_replica() const { return replica_; }
  Device device() const override {
    return services_.replica_devices[static_cast<std::size_t>(replica_)];
  }
  Strategy& strategy() const override { return services_.strategy; }

  ReplicaServices& services() { return services_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  ReplicaGroup& group() { return group_; }

  /// Scope whose duration counts as communication; nested scopes are not counted twice.
  class CommunicationTimer {
   public:
    explicit CommunicationTimer(LocalReplicaContext& context)
        : context_(context.timing_ ? nullptr : &context) {
      if (!context_) return;
      context_->timing_ = true;
      begin_ = Clock::system().now();
    }
    ~CommunicationTimer() {
      if (!context_) return;
      context_->timing_ = false;
      context_->communication_seconds_ += seconds_between(begin_, Clock::system().now());
    }
    CommunicationTimer(const CommunicationTimer&) = delete;
    CommunicationTimer& operator=(const CommunicationTimer&) = delete;

   private:
    LocalReplicaContext* context_;
    TimePoint begin_;
  };
  /// Returns the seconds spent in collectives and gradient exchange so far, including waits.
  double communication_seconds() const { return communication_seconds_; }
  /// Returns the total number of rows of all replicas that this replica assumed, if any.
  std::optional<std::int64_t> assumed_rows() const { return assumed_rows_; }
  /// Returns the number of rows of the batch that the step received; nullopt if it received none.
  std::optional<std::int64_t> batch_rows() const { return batch_rows_; }
  /// Returns the result of the step if it is not finite.
  std::optional<double> non_finite_result() const { return non_finite_result_; }
  /// Records that gradients are summed over replicas. If the last call to note_target() declared a
  /// mean over this replica's rows, the gradients are those of that mean.
  void note_sum() { summed_mean_ = target_; }
  /// Returns the declared mean (note_target()) whose gradients were summed, if there was one.
  const std::optional<MeanOfRows>& summed_mean() const { return summed_mean_; }

  /// Waits until every replica has called this function, then runs `action` once, with the
  /// arguments of all replicas.
  template <class Argument>
  void meet(RendezvousHeader header, Argument& argument,
            const std::function<void(const std::vector<Argument*>&)>& action,
            IdleWork* idle = nullptr) {
    const Rendezvous::Action erased = [&action](std::span<void* const> arguments) {
      std::vector<Argument*> typed;
      for (void* each : arguments) typed.push_back(static_cast<Argument*>(each));
      action(typed);
    };
    require_own_thread(header);
    const CommunicationTimer timer(*this);
    rendezvous_.meet(replica_, std::move(header), &argument, erased, idle);
  }

  void note_result(double result) override {
    if (!std::isfinite(result)) non_finite_result_ = result;
  }

 protected:
  int local_index() const override { return replica_; }
  std::shared_ptr<const void> merge_erased(const void* local, const std::type_info& type,
                                           const ErasedMerge& merge, SourceLocation where) override;
  std::vector<Gradient> all_reduce_values(ReduceOp op, std::span<const Gradient> values,
                                          SourceLocation where) override;
  Gathered all_gather_value(const Tensor& value, int axis, SourceLocation where) override;
  void note_batch(const Batch& batch) override { batch_rows_ = batch.rows(); }

 private:
  /// Interface through which layers, losses and metrics use the replicas.
  class Group final : public ReplicaGroup {
   public:
    explicit Group(LocalReplicaContext& context) : context_(context) {}
    int replica_id() const override { return context_.replica_id(); }
    int num_replicas() const override { return context_.num_replicas_in_sync(); }
    int num_local_replicas() const override {
      return static_cast<int>(context_.services_.replica_devices.size());
    }
    Tensor all_reduce(ReduceOp op, const Tensor& value) override {
      return context_.all_reduce(op, value, SourceLocation());
    }
    Tensor all_gather(const Tensor& value, int axis) override {
      return context_.all_gather(value, axis, SourceLocation());
    }
    void assume_equal_rows(std::int64_t rows) override { context_.assumed_rows_ = rows; }
    void note_target(const std::optional<MeanOfRows>& mean) override { context_.target_ = mean; }

   private:
    LocalReplicaContext& context_;
  };

  void require_own_thread(const RendezvousHeader& header) const;

  ReplicaServices& services_;
  Rendezvous& rendezvous_;
  IdleWork& nested_;
  const int replica_;
  Group group_;
  bool timing_ = false;
  double communication_seconds_ = 0.0;
  std::optional<std::int64_t> assumed_rows_;
  std::optional<std::int64_t> batch_rows_;
  std::optional<double> non_finite_result_;
  std::optional<MeanOfRows> target_;
  std::optional<MeanOfRows> summed_mean_;
};

}  // namespace tutti::internal
