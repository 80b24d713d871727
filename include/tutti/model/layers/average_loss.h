// Scaling losses so that their sum over replicas is that of the global batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <optional>
#include <span>

#include "tutti/tensor/tensor.h"

namespace tutti {

struct AverageLossOptions {
  /// Default: rows of per_example_loss times the number of replicas, which is wrong when replicas
  /// have different numbers of rows (a ragged last batch; a warning says so once): then give
  /// batch.global_rows().
  std::optional<std::int64_t> global_batch_size = std::nullopt;
  /// [] or [batch] or the shape of the losses; multiplies them.
  Tensor sample_weight = {};
};

/// sum(per_example_loss * sample_weight) / global_batch_size, []; 0 for a global batch of 0. The
/// sum over replicas is the mean over the global batch. per_example_loss: [batch, ...] floating;
/// only the first dimension is counted, so average pixels before. Throws kInvalidArgument for a
/// scalar, a negative size or weights that do not fit; kFailedPrecondition in the cross-replica
/// context. tf.nn.compute_average_loss.
Tensor compute_average_loss(const Tensor& per_example_loss, AverageLossOptions options = {});

template <std::integral Int>
Tensor compute_average_loss(const Tensor& per_example_loss, Int global_batch_size) {
  return compute_average_loss(
      per_example_loss,
      AverageLossOptions{.global_batch_size = static_cast<std::int64_t>(global_batch_size)});
}
/// A global batch is a whole number.
template <std::floating_point Float>
Tensor compute_average_loss(const Tensor& per_example_loss, Float global_batch_size) = delete;

/// sum(losses) / number of replicas, []: regularisation losses depend on the weights alone, so that
/// their sum over replicas counts them once. Throws kFailedPrecondition in the cross-replica
/// context. tf.nn.scale_regularization_loss.
Tensor scale_regularization_loss(std::span<const Tensor> losses);
Tensor scale_regularization_loss(const Tensor& losses);

}  // namespace tutti
