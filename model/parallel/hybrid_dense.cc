// Model-parallel dense layers: checks, optimizers, and one operation for outer tapes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/hybrid_dense.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "model/parallel/parts.h"
#include "model/parallel/pipeline_stage.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/trace.h"
#include "tutti/model/layers/losses.h"
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

/// Returns, by round and replica, the replica's rows that belong to the round. Omits empty rounds.
std::vector<std::vector<Part>> rounds_of(HybridScheme scheme,
                                         const std::vector<std::int64_t>& rows) {
  const auto num_replicas = static_cast<std::int64_t>(rows.size());
  std::vector<std::vector<Part>> rounds;
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
    if (rows_in(parts) > 0) rounds.push_back(std::move(parts));
  }
  return rounds;
}

/// Returns the position of each replica's rows in the round's batch.
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

void check_rounds(const std::vector<std::vector<Part>>& rounds, std::int64_t most) {
  for (const std::vector<Part>& parts : rounds) {
    if (rows_in(parts) <= most) continue;
    fail(ErrorCode::kInvalidArgument, "HybridDense::train: a round has ", rows_in(parts),
         " examples; expected at most a dense_batch of ", most,
         ", because the dense layers change between rounds; use HybridScheme::kSharesOfAll, or a "
         "dense_batch of one round or several");
  }
}

/// Collective. Returns the value of each replica, on that replica's device.
std::vector<Tensor> of_all(const Tensor& own) {
  return ReplicaContext::current().merge_call(
      [](Strategy&, const PerReplica<Tensor>& all) { return all.values(); }, own);
}

/// Computes the results of its device's part of the layers for the examples of all replicas, and
/// the loss of its own examples. All replicas create one and run it concurrently, each on its own
/// thread and without outer observers.
class HybridReplica {
 public:
  /// Collective. `done` receives the transfers that this replica makes.
  HybridReplica(const ParallelDensePair& layers, const Loss& loss, Optimizer& optimizer,
                HybridStep& done, const Tensor& features, const Tensor& labels)
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

  /// Runs all rounds, and the updates of this device's part of the layers.
  void run(const HybridDenseOptions& options) {
    TransferLog log;
    log_ = &log;
    done_ = {};
    const std::vector<std::vector<Part>> rounds = rounds_of(options.scheme, rows_);
    const std::int64_t most = options.dense_batch > 0 ? options.dense_batch : global_rows_;
    check_rounds(rounds, most);
    for (std::size_t t = 0; t < rounds.size(); ++t) {
      const TraceSpan span("dense round", "compute", {{"round", static_cast<std::int64_t>(t)}});
      run_round(rounds[t]);
      const bool is_last = t + 1 == rounds.size();
      if (is_last || rows_since_update_ + rows_in(rounds[t + 1]) > most) update();
    }
  }

  /// Return this replica's share of the mean loss over all examples, and its gradient.
  Tensor loss() const {
    return loss_.defined() ? loss_ : Tensor::scalar(0.0, features_[own_].dtype(), device_);
  }
  Tensor feature_gradient() const {
    if (feature_gradients_.empty()) {
      return Tensor::zeros(features_[own_].shape(), features_[own_].dtype(), device_);
    }
    return feature_gradients_.size() == 1 ? feature_gradients_[0] : concat(feature_gradients_, 0);
  }

 private:
  /// Ends an exchange, which consists of the transfers since the previous one.
  void note_exchange() {
    done_.exchanges.push_back(log_->transfers());
    log_->clear();
  }
  /// Fetches these rows of each replica's value, concatenated on this device.
  Tensor joined(const std::vector<Tensor>& values, const std::vector<Part>& parts) {
    std::vector<Tensor> here;
    for (std::size_t r = 0; r < values.size(); ++r) {
      if (parts[r].count > 0) here.push_back(transfer(rows_of(values[r], parts[r]), device_));
    }
    note_exchange();
    return here.size() == 1 ? here[0] : concat(here, 0);
  }
  /// Fetches this replica's rows of each device's result of the round, and adds them.
  Tensor summed(const std::vector<Tensor>& values, Part own) {
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
  void run_round(const std::vector<Part>& parts) {
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
    ++done_.num_rounds;
  }
  /// Returns the gradient with respect to `result`, of this replica's rows `own`; adds their loss.
  Tensor gradient_of_loss(const Tensor& result, Part own) {
    if (own.count == 0) return result;
    GradientTape tape;
    tape.watch(result);
    const Tensor loss = compute_average_loss(
        loss_function_.per_example(rows_of(labels_, own), result), global_rows_);
    const Tensor gradient = tape.gradient(loss, result).to_dense();
    loss_ = loss_.defined() ? loss_ + loss : loss;
    return gradient;
  }
  /// Updates with the mean gradient over the examples since the last update.
  void update() {
    const double scale =
        static_cast<double>(global_rows_) / static_cast<double>(rows_since_update_);
    std::vector<Gradient> gradients;
    for (const StageSum& sum : sums_) {
      gradients.push_back(scale == 1.0 ? sum.total() : scale_gradient(sum.total(), scale));
    }
    // Each part is updated by one replica only; other replicas train other parts.
    const GradientReducerScope this_part_alone(nullptr);
    const ReplicaGroupScope one_writer(&ReplicaGroup::of_one());
    optimizer_.apply_gradients(gradients, {.aggregation = GradientAggregation::kNone});
    sums_ = std::vector<StageSum>(sums_.size());
    rows_since_update_ = 0;
    ++done_.num_updates;
  }

  const ParallelDensePair& layers_;
  const Loss& loss_function_;
  Optimizer& optimizer_;
  HybridStep& done_;
  TransferLog* log_ = nullptr;
  const std::size_t own_;  // index of this replica, its device and its part
  const Device device_;
  const Tensor labels_;
  const std::vector<Tensor> features_;  // by replica
  std::vector<std::int64_t> rows_;      // by replica
  std::int64_t global_rows_ = 0;
  std::int64_t rows_since_update_ = 0;
  std::vector<StageSum> sums_;  // of gradients since the last update, by variable
  std::vector<Tensor> feature_gradients_;
  Tensor loss_;
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {

std::string_view to_string(HybridScheme scheme) {
  switch (scheme) {
    case HybridScheme::kAllAtOnce:
      return "all at once";
    case HybridScheme::kOneByOne:
      return "one by one";
    case HybridScheme::kSharesOfAll:
      return "shares of all";
  }
  return "?";
}

std::size_t HybridStep::bytes() const {
  std::size_t sum = 0;
  for (const std::vector<Transfer>& exchange : exchanges) {
    for (const Transfer& transfer : exchange) sum += transfer.bytes;
  }
  return sum;
}

std::size_t HybridStep::busiest_bytes() const {
  std::size_t sum = 0;
  for (const std::vector<Transfer>& exchange : exchanges) {
    std::map<std::pair<Device, bool>, std::size_t> moved;  // true: sent
    std::size_t most = 0;
    for (const Transfer& transfer : exchange) {
      most = std::max({most, moved[{transfer.from, true}] += transfer.bytes,
                       moved[{transfer.to, false}] += transfer.bytes});
    }
    sum += most;
  }
  return sum;
}

struct HybridDense::Impl {
  const ParallelDensePair layers;
  const Loss loss;
  const HybridDenseOptions options;
  std::vector<std::unique_ptr<Optimizer>> optimizers;  // by device
  std::vector<HybridStep> done;  // by device: its transfers; each is written only by its replica
};

namespace {

/// Adds a prefix to names, because the optimizers of all parts use the same ones.
class PrefixingCreator final : public VariableCreator {
 public:
  explicit PrefixingCreator(std::string prefix)
      : prefix_(std::move(prefix)), outer_(VariableCreator::current()), scope_(*this) {}
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override {
    options.name = prefix_ + options.name;
    return outer_.create(initializer, key, std::move(options));
  }

 private:
  const std::string prefix_;
  VariableCreator& outer_;
  const VariableCreatorScope scope_;
};

void check_place(const ReplicaContext& context, const ParallelDensePair& layers) {
  const auto replica = static_cast<std::size_t>(context.replica_id());
  const auto num_replicas = static_cast<std::size_t>(context.num_replicas_in_sync());
  if (context.strategy().num_workers() != 1 || num_replicas != layers.devices().size()) {
    fail(ErrorCode::kInvalidArgument,
         "HybridDense::train: expected one process with a replica for ", "each of the ",
         layers.devices().size(), " devices of the layers, got ", num_replicas, " replicas in ",
         context.strategy().num_workers(), "; use MirroredStrategy on them");
  }
  if (context.device() == layers.devices()[replica]) return;
  fail(ErrorCode::kInvalidArgument, "HybridDense::train: replica ", replica, " is on ",
       context.device(), "; expected ", layers.devices()[replica], ", where part ", replica,
       " of the layers is; use the same devices, in the same order");
}

void check_batch(const Tensor& features, const Tensor& labels, const ParallelDensePair& layers) {
  const std::int64_t in = layers.input_shape()[-1];
  const DType dtype = layers.variables()[0].dtype();
  if (features.rank() == 2 && features.shape()[1] == in && features.dtype() == dtype &&
      labels.rank() > 0 && labels.shape()[0] == features.shape()[0]) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, "HybridDense::train: expected features [rows, ", in, "] of ",
       dtype, " and labels [rows, ...], got ", features.shape(), " of ", features.dtype(), " and ",
       labels.shape(), "; try a Flatten() behind the convolutions, or cast()");
}

}  // namespace

HybridDense::HybridDense(ParallelDensePair layers, Loss loss, HybridDenseOptions options) {
  internal::require_no_strategy("HybridDense");
  if (options.dense_batch < 0 || (!layers.built() && !layers.given_input_shape())) {
    fail(ErrorCode::kInvalidArgument, "HybridDense: expected a dense_batch >= 0, and layers ",
         "that know their input, got ", options.dense_batch, " and layers that ",
         layers.built() ? "do" : "do not", "; use ParallelDenseOptions::input_shape");
  }
  if (!layers.built()) layers.build_for(*layers.given_input_shape());
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::size_t part = 0; part < layers.devices().size(); ++part) {
    const PrefixingCreator names(concat("part_", part, "/"));
    optimizers.push_back(options.optimizer.make(layers.variables_of(part)));
    if (!optimizers.back()->has_loss_scale()) continue;
    fail(ErrorCode::kInvalidArgument,
         "HybridDense: expected an optimizer without loss scaling, got ", optimizers.back()->name(),
         " with it; use it for the convolutions alone");
  }
  impl_ = std::make_shared<Impl>(
      Impl{std::move(layers), std::move(loss), std::move(options), std::move(optimizers), {}});
  impl_->done.resize(impl_->optimizers.size());
}

Tensor HybridDense::train(const Tensor& features, const Tensor& labels) const {
  const ReplicaContext& context = ReplicaContext::current();
  if (StepRecorder::current()) {
    fail(ErrorCode::kUnimplemented,
         "HybridDense::train: its replicas meet within the step; expected ",
         "a step that is not captured; run the step function itself");
  }
  check_place(context, impl_->layers);
  check_batch(features, labels, impl_->layers);
  const auto own = static_cast<std::size_t>(context.replica_id());
  Tensor loss, gradient;
  {
    const SeparateObservers unseen_by_outer_tapes;
    internal::HybridReplica replica(impl_->layers, impl_->loss, *impl_->optimizers[own],
                                    impl_->done[own], features, labels);
    replica.run(impl_->options);
    loss = replica.loss();
    gradient = replica.feature_gradient();
  }
  record_custom_gradient(
      std::span(&features, 1), std::span(&loss, 1),
      [gradient](std::span<const Tensor> dy) { return std::vector{Gradient(gradient * dy[0])}; });
  return loss;
}

const ParallelDensePair& HybridDense::layers() const { return impl_->layers; }

HybridStep HybridDense::last_step() const {
  HybridStep step = impl_->done.front();
  for (std::size_t replica = 1; replica < impl_->done.size(); ++replica) {
    const HybridStep& other = impl_->done[replica];
    for (std::size_t i = 0; i < step.exchanges.size(); ++i) {
      step.exchanges[i].insert(step.exchanges[i].end(), other.exchanges.at(i).begin(),
                               other.exchanges.at(i).end());
    }
  }
  return step;
}

std::vector<Variable> HybridDense::state_variables() const {
  std::vector<Variable> state;
  for (const auto& optimizer : impl_->optimizers) {
    for (const Variable& variable : optimizer->state_variables()) state.push_back(variable);
  }
  return state;
}

double HybridDense::learning_rate() const { return impl_->optimizers.front()->learning_rate(); }

void HybridDense::set_learning_rate(double value) {
  for (const auto& optimizer : impl_->optimizers) optimizer->set_learning_rate(value);
}

}  // namespace tutti
