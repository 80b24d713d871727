// The turns of one replica: features come, results go, and the same for gradients.
// SPDX-License-Identifier: Apache-2.0
#include "model/parallel/hybrid_replica.h"

#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/trace.h"
#include "tutti/model/layers/average_loss.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

std::int64_t rows_in(const std::vector<Part>& parts) {
  std::int64_t sum = 0;
  for (const Part& part : parts) sum += part.count;
  return sum;
}

/// By turn and replica: which of the replica's rows belong to the turn. Turns have rows.
std::vector<std::vector<Part>> turns_of(HybridScheme scheme,
                                        const std::vector<std::int64_t>& rows) {
  const auto num_replicas = static_cast<std::int64_t>(rows.size());
  std::vector<std::vector<Part>> turns;
  for (std::int64_t t = 0; t < (scheme == HybridScheme::kAllAtOnce ? 1 : num_replicas); ++t) {
    std::vector<Part> parts;
    for (std::int64_t r = 0; r < num_replicas; ++r) {
      const std::int64_t count = rows[static_cast<std::size_t>(r)];
      const std::int64_t first = count * t / num_replicas;
      if (scheme == HybridScheme::kSharesOfAll) {
        parts.push_back({first, count * (t + 1) / num_replicas - first});
      } else {
        parts.push_back({0, scheme == HybridScheme::kAllAtOnce || r == t ? count : 0});
      }
    }
    if (rows_in(parts) > 0) turns.push_back(std::move(parts));
  }
  return turns;
}

/// Where each replica's rows lie in the turn's batch.
std::vector<Part> places_of(const std::vector<Part>& parts) {
  std::vector<Part> places;
  std::int64_t first = 0;
  for (const Part& part : parts) {
    places.push_back({first, part.count});
    first += part.count;
  }
  return places;
}

Tensor rows_of(const Tensor& value, Part part) {
  return value.detached_rows(part.first, part.count);
}

void check_turns(const std::vector<std::vector<Part>>& turns, std::int64_t most) {
  for (const std::vector<Part>& parts : turns) {
    if (rows_in(parts) <= most) continue;
    fail(ErrorCode::kInvalidArgument, "HybridDense::train: a turn has ", rows_in(parts),
         " examples; expected at most a dense_batch of ", most,
         ", for the dense layers change between turns; try HybridScheme::kSharesOfAll, or a "
         "dense_batch of one turn or several");
  }
}

/// All meet: the value of each replica, where it is.
std::vector<Tensor> of_all(const Tensor& own) {
  return ReplicaContext::current().merge_call(
      [](Strategy&, const PerReplica<Tensor>& all) { return all.values(); }, own);
}

}  // namespace

HybridReplica::HybridReplica(const ParallelDensePair& layers, const Loss& loss,
                             Optimizer& optimizer, HybridStep& done, const Tensor& features,
                             const Tensor& labels)
    : layers_(layers),
      loss_function_(loss),
      optimizer_(optimizer),
      done_(done),
      own_(static_cast<std::size_t>(ReplicaContext::current().replica_id())),
      device_(ReplicaContext::current().device()),
      labels_(labels),
      features_(of_all(features)),
      sums_(optimizer.variables().size()) {
  for (const Tensor& each : features_) {
    rows_.push_back(each.shape()[0]);
    global_rows_ += rows_.back();
  }
}

void HybridReplica::run(const HybridDenseOptions& options) {
  TransferLog log;
  log_ = &log;
  done_ = {};
  const std::vector<std::vector<Part>> turns = turns_of(options.scheme, rows_);
  const std::int64_t most = options.dense_batch > 0 ? options.dense_batch : global_rows_;
  check_turns(turns, most);
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const TraceSpan span("dense turn", "compute", {{"turn", static_cast<std::int64_t>(t)}});
    turn(turns[t]);
    const bool is_last = t + 1 == turns.size();
    if (is_last || rows_since_update_ + rows_in(turns[t + 1]) > most) update();
  }
}

Tensor HybridReplica::loss() const {
  return loss_.defined() ? loss_ : Tensor::scalar(0.0, features_[own_].dtype(), device_);
}
Tensor HybridReplica::feature_gradient() const {
  if (feature_gradients_.empty()) {
    return Tensor::zeros(features_[own_].shape(), features_[own_].dtype(), device_);
  }
  return feature_gradients_.size() == 1 ? feature_gradients_[0] : concat(feature_gradients_, 0);
}

/// An exchange ends: what has moved since the one before counts as its own.
void HybridReplica::note_exchange() {
  done_.exchanges.push_back(log_->transfers());
  log_->clear();
}

/// Fetches some rows of each replica's value; one value on this device.
Tensor HybridReplica::joined(const std::vector<Tensor>& values, const std::vector<Part>& parts) {
  std::vector<Tensor> here;
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (parts[r].count > 0) here.push_back(transfer(rows_of(values[r], parts[r]), device_));
  }
  note_exchange();
  return here.size() == 1 ? here[0] : concat(here, 0);
}

/// Fetches this replica's rows of what each device has made for the turn, and adds them.
Tensor HybridReplica::summed(const std::vector<Tensor>& values, Part own) {
  if (own.count == 0) {
    note_exchange();
    return rows_of(values[own_], own);
  }
  std::vector<Tensor> rows;
  for (const Tensor& value : values) rows.push_back(rows_of(value, own));
  const Tensor sum = canonical_sum(std::move(rows), device_);
  note_exchange();
  return sum;
}

void HybridReplica::turn(const std::vector<Part>& parts) {
  const std::vector<Part> places = places_of(parts);
  const Tensor input = joined(features_, parts);
  GradientTape tape;
  tape.watch(input);
  const Tensor partial = layers_.partial_result(own_, input);
  tape.stop();
  const Tensor result = summed(of_all(partial), places[own_]);
  const std::vector<Tensor> result_gradients = of_all(gradient_of_loss(result, parts[own_]));
  std::vector<Part> whole;
  for (const Part& place : places) whole.push_back({0, place.count});
  const std::vector<Gradient> gradients = tape.gradient_with(
      partial, joined(result_gradients, whole), optimizer_.variables(), std::span(&input, 1));
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i].add(gradients[i]);
  const Tensor feature_gradient = summed(of_all(gradients.back().to_dense()), places[own_]);
  if (parts[own_].count > 0) feature_gradients_.push_back(feature_gradient);
  rows_since_update_ += rows_in(parts);
  ++done_.num_turns;
}

/// With respect to `result`, of this replica's rows `own`; adds their loss to that of the step.
Tensor HybridReplica::gradient_of_loss(const Tensor& result, Part own) {
  if (own.count == 0) return result;
  GradientTape tape;
  tape.watch(result);
  const Tensor loss =
      compute_average_loss(loss_function_.per_example(rows_of(labels_, own), result), global_rows_);
  const Tensor gradient = tape.gradient(loss, result).to_dense();
  loss_ = loss_.defined() ? loss_ + loss : loss;
  return gradient;
}

/// With the mean over the examples since the last update.
void HybridReplica::update() {
  const double scale = static_cast<double>(global_rows_) / static_cast<double>(rows_since_update_);
  std::vector<Gradient> gradients;
  for (const StageSum& sum : sums_) {
    gradients.push_back(scale == 1.0 ? sum.total() : scale_gradient(sum.total(), scale));
  }
  // This part has one writer, though other replicas train other parts.
  const GradientReducerScope this_part_alone(nullptr);
  const ReplicaGroupScope one_writer(&ReplicaGroup::of_one());
  optimizer_.apply_gradients(gradients, {.aggregation = GradientAggregation::kNone});
  sums_ = std::vector<StageSum>(sums_.size());
  rows_since_update_ = 0;
  ++done_.num_updates;
}

}  // namespace tutti::internal
