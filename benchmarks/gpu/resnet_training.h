// Training steps of a residual network, as train_resnet times and compares them.
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

/// What is trained, and where.
struct ResnetOptions {
  std::string network = "resnet20";
  std::string devices = "cpu:0";
  std::int64_t replicas = 0;  // 0: one per device
  std::string cross_device_ops = "";
  std::string policy = "float32";
  std::string execution = "eager";  // or captured: one graph per step on GPUs
  std::int64_t batch_size = 64;     // global
  std::int64_t image_size = 0;      // 0: the network's own
  std::int64_t batches = 1;         // different ones, in turn
  double learning_rate = 0.01;
  std::string data_dir = "";  // of CIFAR-10; empty: made images

  void declare(Flags& flags);
  /// Throws kInvalidArgument naming the flag; fills in the image size.
  void check();
};

/// The network, its optimizer (SGD with momentum 0.9) and its batches, which lie on the devices
/// before the first step.
class ResnetTraining {
 public:
  explicit ResnetTraining(const ResnetOptions& options);

  /// One step on the next batch; nothing waits for a GPU.
  PerReplica<Tensor> step();
  /// The loss of the global batch; waits for it.
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
