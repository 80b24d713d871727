// One step of one replica of a HybridDense: turns, each of four exchanges and the work between.
// Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/parallel/parts.h"
#include "model/parallel/pipeline_stage.h"
#include "tutti/model/parallel/hybrid_dense.h"

namespace tutti::internal {

/// Makes the results of its device's part of the layers for the examples of all replicas, and the
/// loss of its own examples. All replicas make one and run it at the same time, each on its thread
/// and without observers from outside.
class HybridReplica {
 public:
  /// Meets the others. `done` gets what this replica fetched.
  HybridReplica(const ParallelDensePair& layers, const Loss& loss, Optimizer& optimizer,
                HybridStep& done, const Tensor& features, const Tensor& labels);

  /// All turns, and the updates of this device's part of the layers.
  void run(const HybridDenseOptions& options);

  /// This replica's share of the mean over all examples, and its gradient.
  Tensor loss() const;
  Tensor feature_gradient() const;

 private:
  void note_exchange();
  Tensor joined(const std::vector<Tensor>& values, const std::vector<Part>& parts);
  Tensor summed(const std::vector<Tensor>& values, Part own);
  void turn(const std::vector<Part>& parts);
  Tensor gradient_of_loss(const Tensor& result, Part own);
  void update();

  const ParallelDensePair& layers_;
  const Loss& loss_function_;
  Optimizer& optimizer_;
  HybridStep& done_;
  TransferLog* log_ = nullptr;
  const std::size_t own_;  // number of this replica, its device and its part
  const Device device_;
  const Tensor labels_;
  const std::vector<Tensor> features_;  // by replica
  std::vector<std::int64_t> rows_;      // by replica
  std::int64_t global_rows_ = 0;
  std::int64_t rows_since_update_ = 0;
  std::vector<StageSum> sums_;  // of the gradients since the last update, by variable
  std::vector<Tensor> feature_gradients_;
  Tensor loss_;
};

}  // namespace tutti::internal
