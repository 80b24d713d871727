// GradientReducer of a replica, and the reduction that the replicas of a run share: buckets are
// filled, published, reduced and completed.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/replica_reducer.h"

#include <algorithm>
#include <exception>

#include "core/hash.h"
#include "strategy/reduction/bucket_sums.h"
#include "strategy/variables/mirrored_variable.h"
#include "tensor/step_hooks.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
/// Shared reduction into which replicas put their gradients. A bucket that all replicas have filled
/// is published: as slices, which waiting replicas reduce, or as work for GPUs (bucket_sums.h).
class BucketReducer {
 public:
  BucketReducer(ReplicaServices& services, ReplicaMonitor& monitor, PlanInUse& plan,
                std::span<const Variable> variables)
      : monitor_(monitor),
        given_(services, plan, variables),
        sums_(given_, plan),
        progress_(given_.plan->buckets.size()),
        num_filled_(given_.num_replicas) {
    unfilled_.reserve(given_.num_replicas * progress_.size());
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      for (const BucketPlan::Bucket& bucket : given_.plan->buckets) {
        unfilled_.push_back(bucket.items.size());
      }
    }
  }

  const BucketPlan& plan() const { return *given_.plan; }
  const Variable& variable(std::size_t index) const { return given_.variables[index]; }

  /// Adds replica `replica`'s gradient for variable `index`. The last replica to fill its part of a
  /// bucket publishes the bucket.
  void put(int replica, std::size_t index, const Gradient& gradient) {
    const auto r = static_cast<std::size_t>(replica);
    const std::size_t bucket = given_.plan->places[index].bucket;
    given_.put(r, index, gradient);
    sums_.given(r, index);
    if (--unfilled_[r * given_.plan->buckets.size() + bucket] > 0) return;
    sums_.filled(r, bucket);
    if (last_to_fill(r, bucket)) publish(bucket);
  }
  /// Reduces slices until none is left. Stores any exception, which the leader rethrows.
  void work() {
    for (;;) {
      Task task;
      {
        MutexLock lock(monitor_.mutex());
        if (!has_task()) return;
        task = tasks_[next_task_++];
      }
      try {
        const TraceSpan span("reduce", "communication",
                             {{"bucket", static_cast<std::int64_t>(task.bucket)},
                              {"first", static_cast<std::int64_t>(task.slice.begin)},
                              {"end", static_cast<std::int64_t>(task.slice.end)}});
        sums_.reduce(task.bucket, task.slice);
      } catch (...) {
        fail_with(std::current_exception());
        return;
      }
      {
        MutexLock lock(monitor_.mutex());
        if (--progress_[task.bucket].slices_left > 0) continue;
      }
      end_bucket(task.bucket);
    }
  }
  /// Calls BucketSums::join(). Called by one replica after all buckets are done.
  void join() { sums_.join(); }
  /// Returns the first non-finite value; nullopt if there is none, or if no search was requested.
  /// Must be called after join().
  const std::optional<NonFiniteValue>& non_finite() const { return given_.non_finite.lowest(); }
  /// Returns the sums on the device of `replica`. Requires: join() has returned.
  std::vector<Gradient> results(int replica) const {
    const auto r = static_cast<std::size_t>(replica);
    const Device device = given_.services.replica_devices[r];
    std::vector<std::optional<Tensor>> sums;
    for (std::size_t b = 0; b < given_.plan->buckets.size(); ++b) sums.push_back(sums_.sum(b, r));
    std::vector<Gradient> gradients;
    for (std::size_t i = 0; i < given_.variables.size(); ++i) {
      const std::optional<Tensor>& sum = sums[given_.plan->places[i].bucket];
      const BucketPlan::Item& item = given_.item_of(i);
      switch (given_.kinds[i]) {
        case GradientKind::kNone:
          gradients.emplace_back();
          break;
        case GradientKind::kSparse:
          gradients.push_back(device.type == DeviceType::kGpu
                                  ? copy_to(given_.sparse_sums[i], device)
                                  : given_.sparse_sums[i]);
          break;
        case GradientKind::kDense:
          if (std::optional<Tensor> own = sums_.sum_of(i, r)) {
            gradients.emplace_back(*std::move(own));
            break;
          }
          gradients.push_back(
              sum ? Gradient(sum->detached_rows(static_cast<std::int64_t>(item.first),
                                                static_cast<std::int64_t>(item.count))
                                 .detached_reshape(given_.variables[i].shape()))
                  : given_.of(r, i));
          break;
      }
    }
    return gradients;
  }
  /// Returns one entry per variable: the variable if its result is a shard, else an undefined
  /// variable. The list is empty if no result is a shard.
  std::vector<Variable> sharded() const {
    std::vector<Variable> sharded(given_.variables.size());
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      if (shards_of(given_.variables[i]) && sums_.sum_of(i, 0)) sharded[i] = given_.variables[i];
    }
    const auto is_sharded = [](const Variable& variable) { return variable.defined(); };
    return std::ranges::any_of(sharded, is_sharded) ? sharded : std::vector<Variable>();
  }

  /// Returns true if replicas must keep pace with each other, so that pending gradients do not fill
  /// the memory.
  bool limits_pending_gradients() const { return sums_.gives_shards(); }
  /// Returns true if the replica has filled too many buckets that have not been reduced yet.
  bool is_ahead(int replica) const TUTTI_REQUIRES(monitor_.mutex()) {
    constexpr std::size_t kMostAhead = 1;
    return num_filled_[static_cast<std::size_t>(replica)] > buckets_done_ + kMostAhead && !failure_;
  }
  bool has_task() const TUTTI_REQUIRES(monitor_.mutex()) {
    return next_task_ < tasks_.size() && !failure_;
  }
  bool is_finished() const TUTTI_REQUIRES(monitor_.mutex()) {
    return failure_ || buckets_done_ == progress_.size();
  }
  std::exception_ptr failure() const TUTTI_REQUIRES(monitor_.mutex()) { return failure_; }
  /// Declares to the thread-safety analysis that conditions run with the monitor's mutex held.
  void assert_held() const TUTTI_THREAD_ANNOTATION(assert_capability(monitor_.mutex())) {}

 private:
  struct Task {
    std::size_t bucket = 0;
    SliceRange slice;
  };
  struct Progress {
    std::size_t num_filled = 0;  // number of replicas that have filled the bucket
    std::size_t slices_left = 0;
  };

  bool last_to_fill(std::size_t replica, std::size_t bucket) {
    MutexLock lock(monitor_.mutex());
    ++num_filled_[replica];
    return ++progress_[bucket].num_filled == given_.num_replicas;
  }
  void publish(std::size_t bucket) {
    std::vector<SliceRange> slices;
    try {
      const std::vector<BucketPlan::Item>& items = given_.bucket(bucket).items;
      for (const BucketPlan::Item& item : items) given_.unify(item.variable);
      slices = sums_.begin(bucket);
    } catch (...) {
      fail_with(std::current_exception());
      return;
    }
    {
      MutexLock lock(monitor_.mutex());
      for (const SliceRange& slice : slices) tasks_.push_back({bucket, slice});
      progress_[bucket].slices_left = slices.size();
      monitor_.notify_replicas();
    }
    if (slices.empty()) end_bucket(bucket);
  }
  void end_bucket(std::size_t bucket) {
    try {
      sums_.end(bucket);
    } catch (...) {
      return fail_with(std::current_exception());
    }
    MutexLock lock(monitor_.mutex());
    if (++buckets_done_ == progress_.size() || limits_pending_gradients())
      monitor_.notify_replicas();
  }
  void fail_with(std::exception_ptr failure) {
    MutexLock lock(monitor_.mutex());
    if (!failure_) failure_ = std::move(failure);
    monitor_.notify_replicas();
  }

  ReplicaMonitor& monitor_;
  BucketInputs given_;
  BucketSums sums_;
  std::vector<std::size_t> unfilled_;  // per replica and bucket; used by that replica only
  std::vector<Progress> progress_ TUTTI_GUARDED_BY(monitor_.mutex());       // per bucket
  std::vector<std::size_t> num_filled_ TUTTI_GUARDED_BY(monitor_.mutex());  // per replica
  std::vector<Task> tasks_ TUTTI_GUARDED_BY(monitor_.mutex());
  std::size_t next_task_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  std::size_t buckets_done_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  std::exception_ptr failure_ TUTTI_GUARDED_BY(monitor_.mutex());
};

namespace {

[[noreturn]] void fail_different(int replica, std::span<const Variable> variables, int other,
                                 const BucketReducer& buckets) {
  const std::size_t theirs = buckets.plan().variable_ids.size();
  const std::size_t common = std::min(variables.size(), theirs);
  for (std::size_t i = 0; i < common; ++i) {
    if (variables[i] == buckets.variable(i)) continue;
    fail(ErrorCode::kInvalidArgument, "mismatch in the reduction of gradients: position ", i,
         " of the list is Variable '", variables[i].name(), "' in replica ", replica, " and '",
         buckets.variable(i).name(), "' in replica ", other,
         "; expected the same variables in the same order in all replicas");
  }
  fail(ErrorCode::kInvalidArgument, "mismatch in the reduction of gradients: replica ", replica,
       " has ", variables.size(), " variables and replica ", other, " has ", theirs,
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
       "' does not match the variable; expected ", variable.dtype(), " ", variable.shape(),
       ", got ", dtype, " ", shape);
}

/// Returns the variable's placement if replicas must produce equal gradients for it, because they
/// share a component or have copies of one value; nullptr if each replica has its own value.
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

constexpr std::size_t kDigestLength = 32;

/// Returns kDigestLength characters that are equal only for equal gradients.
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

/// Digests of one replica's gradients, for variables that other replicas have copies of.
struct SharedGradients {
  std::vector<const Variable*> variables;
  std::vector<const Placement*> placements;
  std::string digests;  // concatenated
};

/// Returns the digests of all replicas of all workers, in order.
std::vector<std::string> all_digests(const ReplicaServices& services, const std::string& call,
                                     const std::vector<SharedGradients*>& replicas) {
  std::vector<std::string> digests;
  ReplicaValues local;
  for (const SharedGradients* replica : replicas) {
    digests.push_back(replica->digests);
    local.push_back({Tensor::from_bytes({std::ssize(replica->digests)}, DType::kUInt8,
                                        std::as_bytes(std::span(replica->digests)), Device{})});
  }
  if (services.num_workers() == 1) return digests;
  digests.clear();
  for (const auto& values : services.of_all_replicas(std::move(local), call)) {
    const auto bytes = values.at(0).dense().host_span<std::uint8_t>();
    digests.emplace_back(bytes.begin(), bytes.end());
  }
  return digests;
}

void compare_gradients(const ReplicaServices& services, const std::string& call,
                       const std::vector<SharedGradients*>& replicas) {
  const std::vector<std::string> digests = all_digests(services, call, replicas);
  for (std::size_t i = 0; i < replicas.front()->variables.size(); ++i) {
    const Variable& variable = *replicas.front()->variables[i];
    const Placement& placement = *replicas.front()->placements[i];
    const bool are_copies = !variable.storage().options().allow_divergent;
    const std::vector<int>& components = placement.component_of_replica;
    const auto digest = [&](std::size_t replica) {
      return std::string_view(digests[replica]).substr(i * kDigestLength, kDigestLength);
    };
    for (std::size_t b = 1; b < digests.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        if (!are_copies && components[a] != components[b]) continue;
        if (digest(a) == digest(b)) break;  // earlier replicas were compared with a
        const bool is_shared =
            placement.num_sharers.front() == std::ssize(digests) ||
            (digests.size() == components.size() && components[a] == components[b]);
        fail(ErrorCode::kInvalidArgument, "Variable '", variable.name(), "': replicas ", a, " and ",
             b, is_shared ? " share its value" : " have copies of its value",
             ", but give different gradients with GradientAggregation::kNone; expected equal "
             "gradients, such as the results of all_reduce(); use GradientAggregation::kSum, or a "
             "variable with VariableSynchronization::kOnRead, which has a separate value on each "
             "replica");
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
  log_warning(concat(text, "; this update is skipped (logged once)"));
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
         "GradientReducer::begin: the previous reduction is not "
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
         !buckets_                ? ": called before begin() or after finish()"
         : index >= given_.size() ? " is out of range"
                                  : " was already passed",
         "; expected each index below ", given_.size(), " once, between begin() and finish()");
  }
  check_gradient(buckets_->variable(index), gradient);
  given_[index] = true;
  trace_instant("ready", "compute", buckets_->variable(index).name(),
                {{"replica", context_.replica_id()},
                 {"bucket", static_cast<std::int64_t>(buckets_->plan().places[index].bucket)}});
  buckets_->put(context_.local_replica(), index, gradient);
  buckets_->work();
  if (buckets_->limits_pending_gradients()) wait_for_slower_replicas();
}

void ReplicaReducer::wait_for_slower_replicas() {
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
         "GradientReducer::finish: no reduction has begun; expected "
         "a call to begin() first");
  }
  for (std::size_t i = given_.size(); i-- > 0;) {
    if (!given_[i]) ready(i, Gradient());
  }
  if (!given_.empty()) context_.note_sum();
  const TraceSpan span("finish", "communication");
  const Rendezvous::Action action = [this](std::span<void* const>) { finish_buckets(); };
  const int replica = context_.local_replica();
  context_.rendezvous().meet(replica, {.kind = RendezvousKind::kFinishGradients}, nullptr, action,
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
  // Nothing to compare: an earlier call of a recorded step has compared the gradients, and a traced
  // step has no values.
  if (StepRecorder::current() || StepTracer::current()) return;
  RendezvousHeader header{.kind = RendezvousKind::kCompareGradients};
  SharedGradients shared;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Placement* const placement = compared_placement(context_.services(), variables[i]);
    if (!placement) continue;
    shared.variables.push_back(&variables[i]);
    shared.placements.push_back(placement);
    shared.digests += digest_of(gradients[i]);
    header.values.push_back({variables[i].dtype(), variables[i].shape(), false});
  }
  if (shared.variables.empty()) return;
  const std::string call = concat(header.call(), " of ", shared.variables.size(), " variables");
  context_.meet<SharedGradients>(std::move(header), shared,
                                 [&](const std::vector<SharedGradients*>& replicas) {
                                   compare_gradients(context_.services(), call, replicas);
                                 });
}

bool ReplicaReducer::available() {
  buckets_->assert_held();
  return buckets_->has_task();
}

void ReplicaReducer::work() { buckets_->work(); }

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
  context_.rendezvous().meet(context_.local_replica(), {.kind = RendezvousKind::kUpdatesDone},
                             nullptr, action);
}

}  // namespace tutti::internal
