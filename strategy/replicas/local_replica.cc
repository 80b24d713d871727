// merge_call, all_reduce and all_gather among the replicas of one process.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/local_replica.h"

#include "core/call_site.h"
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
      // Values of other workers come to the host.
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
       "', which did not make the variable");
}

void LocalReplicaContext::require_own_thread(const MeetingHeader& header) const {
  const StrategyMode* mode = current_mode();
  if (mode && mode->replica == this) return;
  fail(ErrorCode::kFailedPrecondition, header.describe(),
       ": called on another thread or in another "
       "context than that of replica ",
       replica_, "; expected the replica's own thread, inside run");
}

std::shared_ptr<const void> LocalReplicaContext::merge_erased(const void* local,
                                                              const std::type_info& type,
                                                              const ErasedMerge& merge,
                                                              SourceLocation where) {
  MeetingHeader header{.kind = MeetingKind::kMergeCall, .type = &type, .where = where};
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
  MeetingHeader header{.kind = MeetingKind::kAllReduce, .op = op, .where = where};
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
  MeetingHeader header{.kind = MeetingKind::kAllGather, .axis = axis, .where = where};
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
