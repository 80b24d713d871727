// Copies of a libtorch module and optimizer that stay equal, one per replica of a strategy.
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

/// Returns the index of the calling replica within this process; 0 outside run(). Throws
/// kFailedPrecondition, naming `who`, in a replica of another strategy.
inline std::size_t local_replica(const Strategy& strategy, std::string_view who) {
  const ReplicaContext* const replica = get_replica_context();
  if (!replica || &replica->strategy() == &default_strategy()) return 0;
  if (&replica->strategy() != &strategy) {
    fail(ErrorCode::kFailedPrecondition, who, ": expected a replica of '", strategy.name(),
         "', which owns this module, got a replica of '", replica->strategy().name(), "'");
  }
  return static_cast<std::size_t>(replica->replica_id() - strategy.first_replica());
}

}  // namespace internal

/// One module per replica of a strategy, for steps in libtorch under Strategy::run(); corresponds
/// to a model made in strategy.scope() in tf.distribute.
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
/// Inside run() each replica uses its own module; outside run(), calls use the module of this
/// process's first replica. All modules start with the parameters and buffers of replica 0, and
/// equal gradients keep the parameters bit-identical on all replicas of all workers. Buffers
/// (running averages of batch normalisation) stay local to each replica until broadcast().
///
/// `Module` is a module holder (torch::nn::Linear, or one made by TORCH_MODULE) or a
/// std::shared_ptr to a module. Parameters must be dense and on the CPU, and may not be added,
/// removed or converted later. The strategy's replicas must be on the CPU, and the strategy must
/// outlive this object. Inside run() the replicas' threads may use this object concurrently;
/// outside run(), only one thread may.
template <class Module>
class Replicated {
 public:
  /// Collective: every worker must call it. Calls `make` once per replica of this process. Throws
  /// kInvalidArgument if the modules' tensors differ in name, shape or type, or if a module has no
  /// parameters that require gradients; kUnimplemented if the strategy's replicas are not on the
  /// CPU.
  template <class Make>
  requires(std::is_invocable_r_v<Module, Make&>) Replicated(Strategy& strategy, Make&& make)
      : strategy_(strategy) {
    for (const Device device : strategy.replica_devices()) {
      if (device.type != DeviceType::kCpu) {
        fail(ErrorCode::kUnimplemented, "Replicated: expected replicas on the CPU, got one on ",
             device, "; use devices such as cpu:0-1");
      }
      modules_.push_back(make());
      gradients_.emplace_back(internal::trained_parameters(*modules_.back(), "Replicated"));
    }
    strategy_.run([this] { check_same_module(); });
    broadcast();
  }

  /// Calls forward() on this replica's module.
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return module()->forward(std::forward<Inputs>(inputs)...);
  }

  /// Return this replica's module, as returned by `make` or as a pointer for calls such as
  /// parameters(), train() and eval().
  Module& module() { return modules_[internal::local_replica(strategy_, "Replicated")]; }
  auto* operator->() { return &*module(); }

  /// Replaces gradients with their mean over all replicas of all workers, or with their sum (for
  /// losses divided by the global batch size, as in tf). Results are bit-identical on all replicas.
  /// All replicas must call it inside run(), after backward(). A parameter that this replica did
  /// not use contributes a gradient of 0; one that no replica used keeps its gradient. Throws
  /// kFailedPrecondition outside run(), kInvalidArgument for any other op, kUnimplemented for
  /// sparse gradients, and the errors of ReplicaContext::all_reduce().
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

  /// Copies the parameters and buffers of replica 0 to all replicas, e.g. after replica 0 has
  /// loaded them, or before replicas evaluate or save. All workers must call it outside run().
  void broadcast() {
    strategy_.run([this] {
      std::vector<::torch::Tensor> tensors = module()->parameters();
      for (const ::torch::Tensor& buffer : module()->buffers()) tensors.push_back(buffer);
      broadcast(tensors, ReplicaContext::current());
    });
  }

  Strategy& strategy() { return strategy_; }
  /// Returns the modules of this process, in replica order.
  const std::vector<Module>& modules() const { return modules_; }

 private:
  // Broadcasts replica 0's bytes as a sum to which all other replicas contribute zeros.
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
/// Deduces the module type from the result of `make`.
template <class Make>
Replicated(Strategy&, Make&&) -> Replicated<std::invoke_result_t<Make&>>;

/// One optimizer per replica, for all parameters of that replica's module. Equal gradients keep the
/// optimizers' states equal.
template <class Optimizer>
class ReplicatedOptimizer {
 public:
  /// `options` is the second argument of the optimizer's constructor, after the parameters. The
  /// model must outlive this object.
  template <class Module, class Options>
  ReplicatedOptimizer(Replicated<Module>& model, const Options& options)
      : strategy_(model.strategy()), reduce_([&model](ReduceOp op, SourceLocation where) {
          model.reduce_gradients(op, where);
        }) {
    for (const Module& module : model.modules()) {
      optimizers_.push_back(std::make_unique<Optimizer>(module->parameters(), options));
    }
  }

  /// Calls Replicated::reduce_gradients(op), then step() of this replica's optimizer. Every replica
  /// must call this function inside run().
  void step(ReduceOp op = ReduceOp::kMean, SourceLocation where = SourceLocation::current()) {
    reduce_(op, where);
    (*this)->step();
  }
  /// Clears the gradients of this replica.
  void zero_grad() { (*this)->zero_grad(); }

  /// Returns this replica's optimizer; outside run(), that of this process's first replica. Use it
  /// for learning rates, states, and a step() with gradients that have already been reduced (and
  /// e.g. clipped).
  Optimizer* operator->() {
    return optimizers_[internal::local_replica(strategy_, "ReplicatedOptimizer")].get();
  }

 private:
  Strategy& strategy_;
  std::function<void(ReduceOp, SourceLocation)> reduce_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

}  // namespace tutti::torch
