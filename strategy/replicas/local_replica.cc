// Implements the threads of replicas, and the functions of a replica's context, such as merge_call,
// all_reduce and all_gather.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/local_replica.h"

#include <map>

#include "autograd/recording.h"
#include "core/call_site.h"
#include "strategy/replicas/replica_threads.h"
#include "strategy/replicas/strategy_mode.h"
#include "tensor/step_hooks.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/strategy/strategy.h"

namespace tutti::internal {
namespace {

struct Merge {
  const void* local = nullptr;
  std::shared_ptr<const void> result;
};

struct Reduction {
  std::span<const Gradient> values;
  std::vector<Gradient> results;
};

struct Gathering {
  const Tensor* value = nullptr;
  Tensor result;
  std::int64_t first = 0;
};

void all_reduce_together(ReplicaServices& services, ReduceOp op, const std::string& call,
                         const std::vector<Reduction*>& replicas) {
  ReplicaValues local;
  for (const Reduction* replica : replicas) {
    local.emplace_back(replica->values.begin(), replica->values.end());
  }
  const ReplicaValues all = services.of_all_replicas(std::move(local), call);
  std::vector<PerReplica<Gradient>> values;
  for (std::size_t i = 0; i < all.front().size(); ++i) {
    std::vector<Gradient> each;
    for (const std::vector<Gradient>& replica : all) each.push_back(replica.at(i));
    values.emplace_back(std::move(each));
  }
  std::vector<PerReplica<Gradient>> results;
  {
    MutexLock lock(services.ops_mutex);
    results = services.ops.batch_all_reduce(op, values, services.communication);
  }
  const auto first = static_cast<std::size_t>(services.first_replica());
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    for (const auto& result : results) {
      // Values from other workers are on the host.
      replicas[r]->results.push_back(copy_to(result[first + r], services.replica_devices[r]));
    }
  }
}

void gather_together(ReplicaServices& services, int axis, const std::string& call,
                     const std::vector<Gathering*>& replicas) {
  ReplicaValues local;
  for (const Gathering* replica : replicas) local.push_back({*replica->value});
  std::vector<Tensor> values;
  for (const auto& each : services.of_all_replicas(std::move(local), call)) {
    values.push_back(each.at(0).dense());
  }
  const Tensor whole = [&] {
    MutexLock lock(services.ops_mutex);
    return services.ops.gather(PerReplica<Tensor>(values), axis, values.front().device());
  }();
  std::int64_t row = 0;
  const auto first = static_cast<std::size_t>(services.first_replica());
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (r >= first && r - first < replicas.size()) {
      replicas[r - first]->result = whole.to(replicas[r - first]->value->device());
      replicas[r - first]->first = row;
    }
    row += values[r].shape().dim(axis);
  }
}

}  // namespace

LocalReplicaContext* LocalReplicaContext::current(const VariableStorage& variable,
                                                  std::string_view method) {
  const StrategyMode* mode = current_mode();
  if (!mode || !mode->replica) return nullptr;
  if (static_cast<const void*>(mode->strategy) == variable.owner()) {
    return dynamic_cast<LocalReplicaContext*>(mode->replica);
  }
  if (mode->strategy == &default_strategy()) return nullptr;
  fail(ErrorCode::kFailedPrecondition, "Variable '", variable.name(), "'.", method,
       ": Mixing different strategies: called in a replica of '", mode->strategy->name(),
       "', which did not create the variable");
}

void LocalReplicaContext::require_own_thread(const RendezvousHeader& header) const {
  const StrategyMode* mode = current_mode();
  if (mode && mode->replica == this) return;
  fail(ErrorCode::kFailedPrecondition, header.describe(),
       ": called on a thread or in a context "
       "other than that of replica ",
       replica_, "; expected the replica's own thread, inside run");
}

std::shared_ptr<const void> LocalReplicaContext::merge_erased(const void* local,
                                                              const std::type_info& type,
                                                              const ErasedMerge& merge,
                                                              SourceLocation where) {
  RendezvousHeader header{.kind = RendezvousKind::kMergeCall, .type = &type, .where = where};
  Merge own{local, nullptr};
  const CallSite site(where);
  const auto merge_all = [&](const std::vector<Merge*>& replicas) {
    std::vector<const void*> locals;
    for (const Merge* replica : replicas) locals.push_back(replica->local);
    const MergeScope scope(services_.strategy);
    const std::shared_ptr<const void> result = merge(services_.strategy, locals);
    for (Merge* replica : replicas) replica->result = result;
  };
  meet<Merge>(std::move(header), own, merge_all, &nested_);
  return own.result;
}

std::vector<Gradient> LocalReplicaContext::all_reduce_values(ReduceOp op,
                                                             std::span<const Gradient> values,
                                                             SourceLocation where) {
  if (StepTracer* const tracer = StepTracer::current()) {
    std::vector<Tensor> dense;
    for (const Gradient& value : values) dense.push_back(value.to_dense());
    const std::vector<Tensor> sums = tracer->all_reduce(op, dense, where);
    return {sums.begin(), sums.end()};
  }
  RendezvousHeader header{.kind = RendezvousKind::kAllReduce, .op = op, .where = where};
  for (const Gradient& value : values) header.values.push_back(spec_of(value));
  Reduction own{values, {}};
  const std::string call = header.signature();
  const CallSite site(where);
  meet<Reduction>(std::move(header), own, [&](const std::vector<Reduction*>& replicas) {
    all_reduce_together(services_, op, call, replicas);
  });
  return std::move(own.results);
}

LocalReplicaContext::Gathered LocalReplicaContext::all_gather_value(const Tensor& value, int axis,
                                                                    SourceLocation where) {
  if (StepTracer* const tracer = StepTracer::current()) {
    return {tracer->all_gather(value, axis, where), replica_ * value.shape().dim(axis)};
  }
  RendezvousHeader header{.kind = RendezvousKind::kAllGather, .axis = axis, .where = where};
  header.values.push_back({value.dtype(), value.shape(), false});
  Gathering own{&value, {}, 0};
  const std::string call = header.signature();
  const CallSite site(where);
  meet<Gathering>(std::move(header), own, [&](const std::vector<Gathering*>& replicas) {
    gather_together(services_, axis, call, replicas);
  });
  return {own.result, own.first};
}

}  // namespace tutti::internal

// Replica threads.
//
// A run is a *frame* (body and rendezvous) on a stack. A thread that is idle or parked in a merge
// call starts the innermost frame that it has not started yet. A frame leaves the stack once all
// replicas have finished its body.

namespace tutti::internal {

/// Runs the bodies of nested runs while a replica waits in a merge call.
class ReplicaThreads::NestedBodies final : public IdleWork {
 public:
  NestedBodies(ReplicaThreads& threads, int replica) : threads_(threads), replica_(replica) {}
  bool available() override {
    threads_.monitor_.assert_held();
    return threads_.has_body(replica_);
  }
  void work() override { threads_.run_body(replica_); }

 private:
  ReplicaThreads& threads_;
  const int replica_;
};

ReplicaThreads::ReplicaThreads(const std::vector<Device>& replica_devices, bool sequential,
                               Duration timeout)
    : num_replicas_(static_cast<int>(replica_devices.size())),
      timeout_(timeout),
      monitor_(num_replicas_, sequential),
      token_of_replica_(replica_devices.size(), nullptr),
      last_taken_(replica_devices.size(), 0) {
  if (num_replicas_ == 1) return;
  if (!sequential) {
    std::map<Device, std::vector<std::size_t>> replicas_of;
    for (std::size_t r = 0; r < replica_devices.size(); ++r) {
      replicas_of[replica_devices[r]].push_back(r);
    }
    for (const auto& [device, replicas] : replicas_of) {
      if (replicas.size() == 1) continue;
      tokens_.push_back(std::make_unique<RunToken>());
      for (const std::size_t r : replicas) token_of_replica_[r] = tokens_.back().get();
    }
  }
  try {
    for (int r = 1; r < num_replicas_; ++r) {
      threads_.push_back(Executor::system().start(concat("replica-", r), [this, r] { serve(r); }));
    }
  } catch (const Error&) {
    stop();  // ends the threads that wait for work
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { stop(); }

void ReplicaThreads::stop() {
  {
    MutexLock lock(monitor_.mutex());
    stopping_ = true;
    monitor_.notify_replicas();
  }
  for (auto& thread : threads_) thread->join();
}

RunOutcome ReplicaThreads::run(const Body& body) {
  const bool nested = [this] {
    MutexLock lock(monitor_.mutex());
    return !frames_.empty();
  }();
  const RunPlace place = num_replicas_ == 1 ? RunPlace::kCaller
                         : nested           ? RunPlace::kNested
                                            : RunPlace::kReplicaThreads;
  Frame frame(monitor_, num_replicas_, timeout_, place, body);
  {
    MutexLock lock(monitor_.mutex());
    frame.number = next_number_++;
    frames_.push_back(&frame);
    if (place != RunPlace::kCaller) monitor_.begin(!nested);
  }
  run_as_replica_0(frame, place);
  {
    MutexLock lock(monitor_.mutex());
    frames_.pop_back();
    if (place == RunPlace::kNested) monitor_.resume(0);
  }
  return frame.rendezvous.outcome();
}

void ReplicaThreads::run_as_replica_0(Frame& frame, RunPlace place) {
  if (place == RunPlace::kCaller) {
    run_body(0);
    return;
  }
  {
    const SeparateTapes no_tapes;  // because the other replicas' threads have no outer tapes
    {
      MutexLock lock(monitor_.mutex());
      monitor_.enter(0);
    }
    run_body(0);
  }
  frame.rendezvous.wait_for_end();
}

void ReplicaThreads::serve(int replica) {
  for (;;) {
    {
      MutexLock lock(monitor_.mutex());
      monitor_.wait_idle(
          [&]() TUTTI_REQUIRES(monitor_.mutex()) { return stopping_ || has_body(replica); });
      if (stopping_) return;
      monitor_.enter(replica);
    }
    run_body(replica);
  }
}

bool ReplicaThreads::has_body(int replica) {
  return !frames_.empty() &&
         last_taken_[static_cast<std::size_t>(replica)] < frames_.back()->number;
}

void ReplicaThreads::run_body(int replica) {
  Frame* frame = nullptr;
  {
    MutexLock lock(monitor_.mutex());
    frame = frames_.back();
    last_taken_[static_cast<std::size_t>(replica)] = frame->number;
  }
  std::exception_ptr error;
  {
    const RunTokenHolder token(token_of_replica_[static_cast<std::size_t>(replica)]);
    NestedBodies nested(*this, replica);
    try {
      frame->body(replica, frame->rendezvous, nested);
    } catch (...) {
      error = std::current_exception();
    }
  }
  frame->rendezvous.ended(replica, std::move(error));
}

}  // namespace tutti::internal
