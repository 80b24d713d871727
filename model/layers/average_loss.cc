// Scaling losses by the global batch or the number of replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/average_loss.h"

#include "model/layers/labels_and_weights.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {
namespace {

int replicas_of(std::string_view who) {
  const int replicas = ReplicaGroup::current(who).num_replicas();
  if (replicas < 1) {
    fail(ErrorCode::kInvalidArgument, who, ": expected at least one replica, got ", replicas);
  }
  return replicas;
}

}  // namespace

Tensor compute_average_loss(const Tensor& per_example_loss, AverageLossOptions options) {
  const char* who = "compute_average_loss";
  const int replicas = replicas_of(who);
  if (per_example_loss.rank() == 0) {
    fail(ErrorCode::kInvalidArgument, who,
         ": expected one loss per example (a tensor of at least rank 1), got a scalar; try a loss "
         "without reduction");
  }
  const std::int64_t rows = per_example_loss.shape()[0];
  if (!options.global_batch_size) ReplicaGroup::current(who).assume_equal_rows(rows);
  const std::int64_t global = options.global_batch_size.value_or(rows * replicas);
  if (global < 0) {
    fail(ErrorCode::kInvalidArgument, who, ": global_batch_size must be non-negative, got ",
         global);
  }
  const Tensor sum = reduce_sum(internal::weighted(per_example_loss, options.sample_weight, who));
  return global == 0 ? sum * 0.0 : sum / static_cast<double>(global);
}

Tensor scale_regularization_loss(std::span<const Tensor> losses) {
  const int replicas = replicas_of("scale_regularization_loss");
  if (losses.empty()) return Tensor::zeros({});
  Tensor sum = reduce_sum(losses[0]);
  for (const Tensor& loss : losses.subspan(1)) sum = sum + reduce_sum(loss);
  return sum / static_cast<double>(replicas);
}

Tensor scale_regularization_loss(const Tensor& losses) {
  return scale_regularization_loss(std::span<const Tensor>(&losses, 1));
}

}  // namespace tutti
