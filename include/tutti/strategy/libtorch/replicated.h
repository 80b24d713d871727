// A libtorch module and optimizer that every replica of a strategy has, kept equal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/strategy/libtorch/replica_gradients.h"
#include "tutti/strategy/strategy.h"

namespace tutti::torch {

namespace internal {

/// The place of the calling replica among those of this process; 0 outside every run. Throws
/// kFailedPrecondition naming `who` in a replica of another strategy.
inline std::size_t local_replica(const Strategy& strategy, std::string_view who) {
  const ReplicaContext* const replica = get_replica_context();
  if (!replica || &replica->strategy() == &default_strategy()) return 0;
  if (&replica->strategy() != &strategy) {
    fail(ErrorCode::kFailedPrecondition, who, ": expected a replica of '", strategy.name(),
         "', whose module this is, got one of '", replica->strategy().name(), "'");
  }
  return static_cast<std::size_t>(replica->replica_id() - strategy.first_replica());
}

}  // namespace internal

/// A module per replica of a strategy, for steps in libtorch under Strategy::run(): what a model
/// made in strategy.scope() is in tf.distribute.
///
///     MirroredStrategy strategy("cpu:0-1");
///     tutti::torch::Replicated model(strategy, [] { return Net(); });
///     tutti::torch::ReplicatedOptimizer<torch::optim::SGD> optimizer(model, 0.1);
///     strategy.run([&](const Batch& batch) {
///       optimizer.zero_grad();
///       loss_of(model(to_torch(batch.features())), to_torch(batch.labels())).backward();
///       optimizer.step();  // gradients become the mean over replicas
///     }, batch);
///
/// Inside run() each replica uses its own module; outside, that of the first replica of this
/// process. All begin with the parameters and buffers of replica 0, and equal gradients keep the
/// parameters equal, bit by bit, on all replicas of all workers. Buffers (running averages of batch
/// normalisation) are each replica's own until broadcast().
///
/// `Module` is a module holder (torch::nn::Linear, what TORCH_MODULE made) or a std::shared_ptr of
/// a module. Parameters are dense, on the CPU, and no longer added, removed or converted. The
/// strategy's replicas are on the CPU, and it outlives this. Threads: inside run() each replica's
/// own; else one.
template <class Module>
class Replicated {
 public:
  /// Calls `make` once per replica of this process. All workers call it. Throws kInvalidArgument
  /// where modules differ in names, shapes or types, and for a module without parameters that need
  /// gradients; kUnimplemented for a strategy whose replicas are not on the CPU.
  template <class Make>
  requires(std::is_invocable_r_v<Module, Make&>) Replicated(Strategy& strategy, Make&& make)
      : strategy_(strategy) {
    for (const Device device : strategy.replica_devices()) {
      if (device.type != DeviceType::kCpu) {
        fail(ErrorCode::kUnimplemented, "Replicated: expected replicas on the CPU, got one on ",
             device, "; try devices such as cpu:0-1");
      }
      modules_.push_back(make());
      gradients_.emplace_back(internal::trained_parameters(*modules_.back(), "Replicated"));
    }
    strategy_.run([this] { check_same_module(); });
    broadcast();
  }

  /// The forward() of this replica's module.
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return module()->forward(std::forward<Inputs>(inputs)...);
  }

  /// This replica's, as `make` made it, and the module itself: parameters(), train(), eval().
  Module& module() { return modules_[internal::local_replica(strategy_, "Replicated")]; }
  auto* operator->() { return &*module(); }

  /// Inside run(), after backward(), by all replicas: gradients become the mean over all replicas
  /// of all workers, or their sum (for losses divided by the global batch, as tf has them), with
  /// the same bits on all. A parameter that this replica did not use counts as 0; one that no
  /// replica used keeps what it had. Throws kFailedPrecondition outside run(), kInvalidArgument for
  /// another op, kUnimplemented for sparse gradients, and as ReplicaContext::all_reduce().
  void reduce_gradients(ReduceOp op = ReduceOp::kMean,
                        SourceLocation where = SourceLocation::current()) {
    ReplicaContext& replica = ReplicaContext::current();
    if (&replica.strategy() != &strategy_) {
      fail(ErrorCode::kFailedPrecondition, "Replicated::reduce_gradients: expected a call inside ",
           "strategy.run() of '", strategy_.name(), "', got one outside");
    }
    if (op != ReduceOp::kMean && op != ReduceOp::kSum) {
      fail(ErrorCode::kInvalidArgument, "Replicated::reduce_gradients: expected MEAN or SUM, got ",
           op);
    }
    gradients_[internal::local_replica(strategy_, "Replicated")].all_reduce(op, replica, where);
  }

  /// Outside run(), by all workers: parameters and buffers of all replicas become those of replica
  /// 0, after they were loaded there, or before replicas evaluate or save.
  void broadcast() {
    strategy_.run([this] {
      std::vector<::torch::Tensor> tensors = module()->parameters();
      for (const ::torch::Tensor& buffer : module()->buffers()) tensors.push_back(buffer);
      broadcast(tensors, ReplicaContext::current());
    });
  }

  Strategy& strategy() { return strategy_; }
  /// Those of this process, in replica order.
  const std::vector<Module>& modules() const { return modules_; }

 private:
  // As bytes, to which the others add zeros.
  static void broadcast(std::vector<::torch::Tensor>& tensors, ReplicaContext& replica) {
    const ::torch::NoGradGuard no_grad;
    internal::ReplicaMemory memory;
    std::vector<std::size_t> begins;
    for (const ::torch::Tensor& each : tensors) {
      const Elements like = elements(each);
      begins.push_back(memory.add({like.data, like.num_bytes(), DType::kUInt8}));
    }
    memory.allocate();
    for (std::size_t i = 0; replica.replica_id() == 0 && i < tensors.size(); ++i) {
      memory.view(begins[i], tensors[i]).copy_(tensors[i]);
    }
    const Gradient value = memory.value();
    memory.take(replica.all_reduce(ReduceOp::kSum, std::span(&value, 1)).front());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(memory.view(begins[i], tensors[i]));
    }
  }

  void check_same_module() {
    const std::vector<std::int64_t> own = {internal::structure_of(*module())};
    ReplicaContext& replica = ReplicaContext::current();
    const Tensor all = replica.all_gather(Tensor::from({1}, own), 0);
    internal::require_same("Replicated", "replica", all.host_span<std::int64_t>(), *module());
  }

  Strategy& strategy_;
  std::vector<Module> modules_;
  std::vector<internal::ReplicaGradients> gradients_;
};
/// Of what `make` gives.
template <class Make>
Replicated(Strategy&, Make&&) -> Replicated<std::invoke_result_t<Make&>>;

/// An optimizer per replica, of all parameters of its module: equal gradients keep their states
/// equal.
template <class Optimizer>
class ReplicatedOptimizer {
 public:
  /// `options` is what the optimizer's constructor takes behind the parameters. The model outlives
  /// this.
  template <class Module, class Options>
  ReplicatedOptimizer(Replicated<Module>& model, const Options& options)
      : strategy_(model.strategy()), reduce_([&model](ReduceOp op, SourceLocation where) {
          model.reduce_gradients(op, where);
        }) {
    for (const Module& module : model.modules()) {
      optimizers_.push_back(std::make_unique<Optimizer>(module->parameters(), options));
    }
  }

  /// Inside run(), by all replicas: Replicated::reduce_gradients(op), then this replica's step.
  void step(ReduceOp op = ReduceOp::kMean, SourceLocation where = SourceLocation::current()) {
    reduce_(op, where);
    (*this)->step();
  }
  /// Of this replica.
  void zero_grad() { (*this)->zero_grad(); }

  /// This replica's optimizer, outside run() that of the first of this process: for learning rates
  /// and states, and for a step() with gradients that are reduced already (clipped, for example).
  Optimizer* operator->() {
    return optimizers_[internal::local_replica(strategy_, "ReplicatedOptimizer")].get();
  }

 private:
  Strategy& strategy_;
  std::function<void(ReduceOp, SourceLocation)> reduce_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

}  // namespace tutti::torch
