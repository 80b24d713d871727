// The reducer of a replica thread: joins rounds, gives gradients, helps with slices, waits for the
// rest.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/gradient_bucketer.h"

#include <algorithm>

#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

[[noreturn]] void fail_different(int replica, std::span<const Variable> variables, int other,
                                 const GradientRound& round) {
  const std::size_t theirs = round.plan().variable_ids.size();
  const std::size_t common = std::min(variables.size(), theirs);
  for (std::size_t i = 0; i < common; ++i) {
    if (variables[i] == round.variable(i)) continue;
    fail(ErrorCode::kInvalidArgument, "the reduction of gradients mismatch: position ", i,
         " of the list is Variable '", variables[i].name(), "' in replica ", replica, " and '",
         round.variable(i).name(), "' in replica ", other,
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

std::shared_ptr<GradientRound> GradientExchange::join(int replica,
                                                      std::span<const Variable> variables,
                                                      ReplicaMonitor& monitor) {
  MutexLock lock(monitor.mutex());
  const std::size_t num_replicas = services_.replica_devices.size();
  if (!round_ || round_->joined.size() == num_replicas) {
    const std::size_t senders = services_.num_replicas() > 1 ? num_replicas : 0;
    round_ = std::make_shared<GradientRound>(
        services_, monitor, plans_.find_or_make(variables, services_.communication, senders),
        variables);
  } else if (ids_of(variables) != round_->plan().variable_ids) {
    fail_different(replica, variables, round_->joined.front(), *round_);
  }
  round_->joined.push_back(replica);
  return round_;
}

void GradientExchange::judge(const GradientRound& round) {
  const auto& found = round.non_finite();
  if (!found) return;
  const std::string text = describe(*found, round.variable(found->variable), step_);
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

void GradientBucketer::begin(std::span<const Variable> variables) {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (round_) {
    fail(ErrorCode::kFailedPrecondition,
         "GradientReducer::begin: the reduction before is not "
         "finished; expected finish() first");
  }
  context_.rendezvous().check(context_.local_replica());
  round_ = exchange_.join(context_.local_replica(), variables, context_.rendezvous().monitor());
  given_.assign(variables.size(), false);
}

void GradientBucketer::ready(std::size_t index, const Gradient& gradient) {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (!round_ || index >= given_.size() || given_[index]) {
    fail(ErrorCode::kFailedPrecondition, "GradientReducer::ready: index ", index,
         "; expected each index below ", given_.size(), " once, between begin() and finish()");
  }
  check_gradient(round_->variable(index), gradient);
  given_[index] = true;
  trace_instant("ready", "compute", round_->variable(index).name(),
                {{"replica", context_.replica_id()},
                 {"bucket", static_cast<std::int64_t>(round_->plan().places[index].bucket)}});
  round_->put(context_.local_replica(), index, gradient);
  round_->work();
}

std::vector<Gradient> GradientBucketer::finish() {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  if (!round_) {
    fail(ErrorCode::kFailedPrecondition,
         "GradientReducer::finish: no reduction began; expected "
         "begin() first");
  }
  for (std::size_t i = given_.size(); i-- > 0;) {
    if (!given_[i]) ready(i, Gradient());
  }
  const TraceSpan span("finish", "communication");
  const Rendezvous::Action action = [this](std::span<void* const>) { finish_round(); };
  const int replica = context_.local_replica();
  context_.rendezvous().meet(replica, header(MeetingKind::kFinishGradients), nullptr, action, this);
  const std::shared_ptr<GradientRound> round = std::exchange(round_, nullptr);
  skips_update_ =
      round->non_finite() && context_.services().communication.non_finite == NonFinitePolicy::kSkip;
  return round->results(replica);
}

void GradientBucketer::finish_round() {
  ReplicaMonitor& monitor = context_.rendezvous().monitor();
  for (;;) {
    round_->work();
    context_.rendezvous().wait(
        context_.local_replica(), [this] { return round_->is_finished() || round_->has_task(); },
        "the reduction of gradients");
    MutexLock lock(monitor.mutex());
    if (round_->failure()) std::rethrow_exception(round_->failure());
    if (round_->is_finished()) break;
  }
  round_->join();
  exchange_.judge(*round_);
}

void GradientBucketer::updates_done() {
  const LocalReplicaContext::CommunicationTimer timer(context_);
  const TraceSpan span("updates_done", "communication");
  const Rendezvous::Action action = [this](std::span<void* const>) {
    if (const auto& after_updates = context_.services().after_updates) after_updates();
  };
  context_.rendezvous().meet(context_.local_replica(), header(MeetingKind::kUpdatesDone), nullptr,
                             action);
}

MeetingHeader GradientBucketer::header(MeetingKind kind) const {
  MeetingHeader header;
  header.kind = kind;
  return header;
}

}  // namespace tutti::internal
