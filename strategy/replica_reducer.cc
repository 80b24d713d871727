// The GradientReducer of a replica.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/replica_reducer.h"

#include <algorithm>

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
  return buckets->results(replica);
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
