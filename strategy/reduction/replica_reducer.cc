// The GradientReducer of a replica.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/replica_reducer.h"

#include <algorithm>

#include "core/hash.h"
#include "strategy/variables/mirrored_variable.h"
#include "tensor/step_hooks.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

[[noreturn]] void fail_different(int replica, std::span<const Variable> variables, int other,
                                 const BucketReducer& buckets) {
  const std::size_t theirs = buckets.plan().variable_ids.size();
  const std::size_t common = std::min(variables.size(), theirs);
  for (std::size_t i = 0; i < common; ++i) {
    if (variables[i] == buckets.variable(i)) continue;
    fail(ErrorCode::kInvalidArgument, "the reduction of gradients mismatch: position ", i,
         " of the list is Variable '", variables[i].name(), "' in replica ", replica, " and '",
         buckets.variable(i).name(), "' in replica ", other,
         "; expected the same variables in the same order in all replicas");
  }
  fail(ErrorCode::kInvalidArgument, "the reduction of gradients mismatch: replica ", replica,
       " gives ", variables.size(), " variables and replica ", other, " gives ", theirs,
       "; expected the same variables in the same order in all replicas");
}

void check_gradient(const Variable& variable, const Gradient& gradient) {
  if (gradient.is_none()) return;
  const DType dtype =
      gradient.is_dense() ? gradient.dense().dtype() : gradient.slices().values.dtype();
  const Shape& shape =
      gradient.is_dense() ? gradient.dense().shape() : gradient.slices().dense_shape;
  if (dtype == variable.dtype() && shape == variable.shape()) return;
  fail(ErrorCode::kInvalidArgument, "the gradient of Variable '", variable.name(),
       "' does not fit; expected ", variable.dtype(), " ", variable.shape(), ", got ", dtype, " ",
       shape);
}

/// Where the components of a variable are which the replicas must give equal gradients, as they
/// share a component or have copies of one value; nullptr: each replica has a value of its own.
const Placement* compared_placement(const ReplicaServices& services, const Variable& variable) {
  const std::span<const Variable> parts = joined_parts(variable);
  const Variable& first = parts.empty() ? variable : parts.front();
  const auto* const storage = dynamic_cast<const MirroredStorage*>(&first.storage());
  if (!storage) return nullptr;
  const Placement& placement = *storage->placement();
  const bool is_shared =
      std::ranges::any_of(placement.num_sharers, [](int sharers) { return sharers > 1; });
  const bool is_compared = variable.storage().options().allow_divergent
                               ? is_shared && services.num_workers() == 1
                               : services.num_replicas() > 1;
  return is_compared ? &placement : nullptr;
}

/// The same for equal gradients alone: 32 characters.
std::string digest_of(const Gradient& gradient) {
  Hasher hasher;
  const auto add = [&](std::string_view what, const Tensor& tensor) {
    hasher.update(what);
    hasher.update(tensor.to(Device{}).bytes());
  };
  if (gradient.is_dense()) add("dense", gradient.dense());
  if (gradient.is_slices()) {
    add("values", gradient.slices().values);
    add("indices", gradient.slices().indices);
  }
  return hasher.hex_digest();
}

/// Gradient of one replica for a variable whose copies other replicas have.
struct SharedGradient {
  const Variable* variable = nullptr;
  const Placement* placement = nullptr;
  std::string digest;
};
using SharedGradients = std::vector<SharedGradient>;

/// The digests of all replicas of all workers, in their order, of each gradient.
std::vector<std::vector<std::string>> all_digests(const ReplicaServices& services,
                                                  const std::string& call,
                                                  const std::vector<SharedGradients*>& replicas) {
  std::vector<std::vector<std::string>> all;
  ReplicaValues local;
  for (const SharedGradients* replica : replicas) {
    std::vector<std::string> own;
    std::string joined;
    for (const SharedGradient& each : *replica) joined += own.emplace_back(each.digest);
    all.push_back(std::move(own));
    local.push_back({Tensor::from_bytes({std::ssize(joined)}, DType::kUInt8,
                                        std::as_bytes(std::span<const char>(joined)), Device{})});
  }
  if (services.num_workers() == 1) return all;
  const std::size_t length = replicas.front()->front().digest.size();
  all.clear();
  for (const auto& values : services.of_all_replicas(std::move(local), call)) {
    const auto bytes = values.at(0).dense().host_span<std::uint8_t>();
    const std::string joined(bytes.begin(), bytes.end());
    std::vector<std::string>& own = all.emplace_back();
    for (std::size_t at = 0; at < joined.size(); at += length) {
      own.push_back(joined.substr(at, length));
    }
  }
  return all;
}

void compare_gradients(const ReplicaServices& services, const std::string& call,
                       const std::vector<SharedGradients*>& replicas) {
  const auto digests = all_digests(services, call, replicas);
  for (std::size_t i = 0; i < replicas.front()->size(); ++i) {
    const auto& [variable, placement, digest] = (*replicas.front())[i];
    const bool are_copies = !variable->storage().options().allow_divergent;
    const std::vector<int>& components = placement->component_of_replica;
    for (std::size_t b = 1; b < digests.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        if (!are_copies && components[a] != components[b]) continue;
        if (digests[a][i] == digests[b][i]) break;  // and so to those before
        const bool is_shared =
            placement->num_sharers.front() == std::ssize(digests) ||
            (digests.size() == components.size() && components[a] == components[b]);
        fail(ErrorCode::kInvalidArgument, "Variable '", variable->name(), "': replicas ", a,
             " and ", b,
             is_shared ? " share its value, which one update changes, and"
                       : " have copies of its value, and",
             " give different gradients with GradientAggregation::kNone; expected equal ones, such "
             "as all_reduce() gives; try GradientAggregation::kSum, or a variable with "
             "VariableSynchronization::kOnRead, of which each replica has its own value");
      }
    }
  }
}

}  // namespace

std::shared_ptr<BucketReducer> GradientExchange::join(int replica,
                                                      std::span<const Variable> variables) {
  MutexLock lock(monitor_.mutex());
  const std::size_t num_replicas = services_.replica_devices.size();
  if (!buckets_ || joined_.size() == num_replicas) {
    const std::size_t senders = services_.num_replicas() > 1 ? num_replicas : 0;
    buckets_ = std::make_shared<BucketReducer>(
        services_, monitor_, plans_.find_or_make(variables, services_.communication, senders),
        variables);
    joined_.clear();
  } else if (ids_of(variables) != buckets_->plan().variable_ids) {
    fail_different(replica, variables, joined_.front(), *buckets_);
  }
  joined_.push_back(replica);
  return buckets_;
}

void GradientExchange::judge(const BucketReducer& buckets) {
  const auto& found = buckets.non_finite();
  if (!found) return;
  const std::string text = describe(*found, buckets.variable(found->variable), step_);
  const NonFinitePolicy policy = services_.communication.non_finite;
  if (policy == NonFinitePolicy::kError) {
    fail(ErrorCode::kOutOfRange, "the sum of gradients: ", text,
         "; expected finite values; try a smaller learning rate, clipping, or a policy that skips "
         "such steps");
  }
  if (!plans_.first_warning()) return;
  log_warning(concat(text,
                     policy == NonFinitePolicy::kSkip ? "; this update is left out"
                                                      : "; zeros stand for such values",
                     "; said once"));
}

void ReplicaReducer::note_optimizer(const std::string& name, double learning_rate,
                                    const std::string& settings) {
  const ReplicaServices& services = context_.services();
  if (services.num_workers() == 1 || context_.local_replica() != 0) return;
  ConsistencyCheck& check = *services.team->check();
  constexpr auto kKind = ConsistencyCheck::Kind::kOptimizer;
  check.note_number(kKind, "learning rates of optimizer '" + name + "'", learning_rate);
  check.note(kKind, "settings of optimizer '" + name + "'", std::as_bytes(std::span(settings)),
             settings);
}

void ReplicaReducer::begin(std::span<const Variable> variables) {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (buckets_) {
    fail(ErrorCode::kFailedPrecondition,
         "GradientReducer::begin: the reduction before is not "
         "finished; expected finish() first");
  }
  context_.rendezvous().check(context_.local_replica());
  buckets_ = exchange_.join(context_.local_replica(), variables);
  given_.assign(variables.size(), false);
}

void ReplicaReducer::ready(std::size_t index, const Gradient& gradient) {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (!buckets_ || index >= given_.size() || given_[index]) {
    fail(ErrorCode::kFailedPrecondition, "GradientReducer::ready: index ", index,
         "; expected each index below ", given_.size(), " once, between begin() and finish()");
  }
  check_gradient(buckets_->variable(index), gradient);
  given_[index] = true;
  trace_instant("ready", "compute", buckets_->variable(index).name(),
                {{"replica", context_.replica_id()},
                 {"bucket", static_cast<std::int64_t>(buckets_->plan().places[index].bucket)}});
  buckets_->put(context_.local_replica(), index, gradient);
  buckets_->work();
  if (buckets_->keeps_pace()) keep_pace();
}

void ReplicaReducer::keep_pace() {
  const int replica = context_.local_replica();
  const auto may_go_on = [&] {
    buckets_->assert_held();
    return buckets_->has_task() || !buckets_->is_ahead(replica);
  };
  while (context_.rendezvous().hold_back(replica, may_go_on)) {
    {
      MutexLock lock(context_.rendezvous().monitor().mutex());
      buckets_->assert_held();
      if (!buckets_->has_task()) return;
    }
    buckets_->work();
  }
}

std::vector<Gradient> ReplicaReducer::finish() {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (!buckets_) {
    fail(ErrorCode::kFailedPrecondition,
         "GradientReducer::finish: no reduction began; expected "
         "begin() first");
  }
  for (std::size_t i = given_.size(); i-- > 0;) {
    if (!given_[i]) ready(i, Gradient());
  }
  if (!given_.empty()) context_.note_sum();
  const TraceSpan span("finish", "communication");
  const Rendezvous::Action action = [this](std::span<void* const>) { finish_buckets(); };
  const int replica = context_.local_replica();
  context_.rendezvous().meet(replica, {.kind = MeetingKind::kFinishGradients}, nullptr, action,
                             this);
  const std::shared_ptr<BucketReducer> buckets = std::exchange(buckets_, nullptr);
  skips_update_ = buckets->non_finite() &&
                  context_.services().communication.non_finite == NonFinitePolicy::kSkip;
  sharded_ = buckets->sharded();
  return buckets->results(replica);
}

Gradient ReplicaReducer::whole(std::size_t index, const Gradient& gradient) {
  if (sharded_.empty() || !sharded_[index].defined()) return gradient;
  return context_.all_gather(gradient.dense(), 0).detached_reshape(sharded_[index].shape());
}

void ReplicaReducer::require_equal(std::span<const Variable> variables,
                                   std::span<const Gradient> gradients) {
  // The call before it was recorded has compared; in a traced step there are no values.
  if (StepRecorder::current() || StepTracer::current()) return;
  MeetingHeader header{.kind = MeetingKind::kCompareGradients};
  SharedGradients shared;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Placement* const placement = compared_placement(context_.services(), variables[i]);
    if (!placement) continue;
    shared.push_back({&variables[i], placement, digest_of(gradients[i])});
    header.values.push_back({variables[i].dtype(), variables[i].shape(), false});
  }
  if (shared.empty()) return;
  const std::string call = concat(header.call(), " of ", shared.size(), " variables");
  context_.meet<SharedGradients>(std::move(header), shared,
                                 [&](const std::vector<SharedGradients*>& replicas) {
                                   compare_gradients(context_.services(), call, replicas);
                                 });
}

void ReplicaReducer::finish_buckets() {
  ReplicaMonitor& monitor = context_.rendezvous().monitor();
  for (;;) {
    buckets_->work();
    context_.rendezvous().wait(
        context_.local_replica(),
        [this] {
          buckets_->assert_held();
          return buckets_->is_finished() || buckets_->has_task();
        },
        "the reduction of gradients");
    MutexLock lock(monitor.mutex());
    buckets_->assert_held();
    if (buckets_->failure()) std::rethrow_exception(buckets_->failure());
    if (buckets_->is_finished()) break;
  }
  buckets_->join();
  exchange_.judge(*buckets_);
}

void ReplicaReducer::updates_done() {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  const TraceSpan span("updates_done", "communication");
  const Rendezvous::Action action = [this](std::span<void* const>) {
    if (const auto& after_updates = context_.services().after_updates) after_updates();
  };
  context_.rendezvous().meet(context_.local_replica(), {.kind = MeetingKind::kUpdatesDone}, nullptr,
                             action);
}

}  // namespace tutti::internal
