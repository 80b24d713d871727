// Dense layers by model: what they refuse, their optimizers, and one operation for outer tapes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/hybrid_dense.h"

#include <algorithm>
#include <map>
#include <utility>

#include "model/parallel/hybrid_replica.h"
#include "tensor/step_recorder.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/ops/elementwise.h"

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
    std::map<std::pair<Device, bool>, std::size_t> moved;  // by device, and whether it sent
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
  std::vector<HybridStep> done;  // by device: what it fetched; each is written by its replica alone
};

namespace {

/// Puts a prefix before names, for the optimizers of the parts have the same ones.
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
         context.strategy().num_workers(), "; try MirroredStrategy on them");
  }
  if (context.device() == layers.devices()[replica]) return;
  fail(ErrorCode::kInvalidArgument, "HybridDense::train: replica ", replica, " is on ",
       context.device(), "; expected ", layers.devices()[replica], ", where part ", replica,
       " of the layers is; try the same devices, in the same order");
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
    fail(ErrorCode::kInvalidArgument,
         "HybridDense: expected a dense_batch of 0 or more, and layers ",
         "that know their input, got ", options.dense_batch, " and layers that ",
         layers.built() ? "do" : "do not", "; try ParallelDenseOptions::input_shape");
  }
  if (!layers.built()) layers.build_for(*layers.given_input_shape());
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::size_t part = 0; part < layers.devices().size(); ++part) {
    const PrefixingCreator names(concat("part_", part, "/"));
    optimizers.push_back(options.optimizer.make(layers.variables_of(part)));
    if (!optimizers.back()->has_loss_scale()) continue;
    fail(ErrorCode::kInvalidArgument,
         "HybridDense: expected an optimizer without loss scaling, got ", optimizers.back()->name(),
         " with it; try it for the convolutions alone");
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
         "a step that is not captured; try running the step function itself");
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
