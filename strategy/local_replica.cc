// merge_call, all_reduce and all_gather among the replicas of one process.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/local_replica.h"

#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {
namespace {

MeetingHeader header_of(MeetingKind kind, SourceLocation where) {
  MeetingHeader header;
  header.kind = kind;
  header.where = where;
  return header;
}

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

void all_reduce_together(ReplicaServices& services, ReduceOp op,
                         const std::vector<Reduction*>& replicas) {
  std::vector<PerReplica<Gradient>> values;
  for (std::size_t i = 0; i < replicas.front()->values.size(); ++i) {
    std::vector<Gradient> each;
    for (const Reduction* replica : replicas) each.push_back(replica->values[i]);
    values.emplace_back(std::move(each));
  }
  std::vector<PerReplica<Gradient>> results;
  {
    MutexLock lock(services.ops_mutex);
    results = services.ops.batch_all_reduce(op, values, services.communication);
  }
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    for (const auto& result : results) replicas[r]->results.push_back(result[r]);
  }
}

void gather_together(ReplicaServices& services, int axis, const std::vector<Gathering*>& replicas) {
  std::vector<Tensor> values;
  for (const Gathering* replica : replicas) values.push_back(*replica->value);
  const Tensor whole = [&] {
    MutexLock lock(services.ops_mutex);
    return services.ops.gather(PerReplica<Tensor>(values), axis, values.front().device());
  }();
  std::int64_t first = 0;
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    replicas[r]->result = whole.to(values[r].device());
    replicas[r]->first = first;
    first += values[r].shape().dim(axis);
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
  MeetingHeader header = header_of(MeetingKind::kMergeCall, where);
  header.type = &type;
  require_own_thread(header);
  const Rendezvous::Action action = [this, &merge](std::span<void* const> arguments) {
    std::vector<const void*> locals;
    for (void* argument : arguments) locals.push_back(static_cast<Merge*>(argument)->local);
    const MergeScope scope(services_.strategy);
    const std::shared_ptr<const void> result = merge(services_.strategy, locals);
    for (void* argument : arguments) static_cast<Merge*>(argument)->result = result;
  };
  Merge own{local, nullptr};
  const CommunicationTimer timer(*this);
  rendezvous_.meet(replica_, std::move(header), &own, action, &nested_);
  return own.result;
}

std::vector<Gradient> LocalReplicaContext::all_reduce_values(ReduceOp op,
                                                             std::span<const Gradient> values,
                                                             SourceLocation where) {
  MeetingHeader header = header_of(MeetingKind::kAllReduce, where);
  header.op = op;
  for (const Gradient& value : values) header.values.push_back(spec_of(value));
  Reduction own{values, {}};
  meet<Reduction>(std::move(header), own, [this, op](const std::vector<Reduction*>& replicas) {
    all_reduce_together(services_, op, replicas);
  });
  return std::move(own.results);
}

LocalReplicaContext::Gathered LocalReplicaContext::all_gather_value(const Tensor& value, int axis,
                                                                    SourceLocation where) {
  MeetingHeader header = header_of(MeetingKind::kAllGather, where);
  header.axis = axis;
  header.values.push_back({value.dtype(), value.shape().with_dim(axis, 0),
                           false});  // lengths along the axis may differ
  Gathering own{&value, {}, 0};
  meet<Gathering>(std::move(header), own, [this, axis](const std::vector<Gathering*>& replicas) {
    gather_together(services_, axis, replicas);
  });
  return {own.result, own.first};
}

}  // namespace tutti::internal
