// Training steps of a residual network; train_resnet times or compares them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/flags.h"
#include "tutti/core/json.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/tutti.h"

namespace tutti::benchmarks {

/// Options for the network, its data and its devices.
struct ResnetOptions {
  std::string network = "resnet20";
  std::string devices = "cpu:0";
  std::int64_t replicas = 0;  // number of replicas; 0: one per device
  std::string cross_device_ops = "";
  std::string policy = "float32";
  std::string execution = "eager";  // eager, or captured: GPUs replay a graph for each step
  std::int64_t batch_size = 64;     // global batch size
  std::int64_t image_size = 0;      // height and width; 0: the network's default
  std::int64_t batches = 1;         // number of distinct batches, used in rotation
  double learning_rate = 0.01;
  std::string data_dir = "";  // folder with CIFAR-10; empty: synthetic images

  void declare(Flags& flags);
  /// Sets the default image size. Throws kInvalidArgument, naming the flag, if a flag is invalid.
  void check();
};

/// Network, optimizer (SGD with momentum 0.9), and batches that are copied to the devices before
/// the first step.
class ResnetTraining {
 public:
  explicit ResnetTraining(const ResnetOptions& options);

  /// Runs one step on the next batch, without waiting for GPUs.
  PerReplica<Tensor> step();
  /// Waits for the loss of the global batch and returns it.
  double value_of(const PerReplica<Tensor>& loss);

  std::int64_t num_parameters() const { return model_->num_trainable_parameters(); }
  int num_replicas() const { return strategy_->num_replicas_in_sync(); }
  std::string_view cross_device_ops() { return strategy_->cross_device_ops().name(); }

 private:
  using Step = std::function<Tensor(const Batch&)>;
  Tensor train(const Batch& part);

  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Sequential> model_;
  std::unique_ptr<Sgd> optimizer_;
  std::vector<PerReplica<Batch>> batches_;
  Step eager_;
  std::optional<CapturedStep<Step>> captured_;
  std::size_t next_ = 0;
};

}  // namespace tutti::benchmarks
