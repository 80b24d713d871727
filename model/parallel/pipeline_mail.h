// What the stages of a pipeline hand each other during one batch. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Activations go forward, gradients backward; each stage takes what was put for it and waits until
/// it is there. One batch; any thread.
class PipelineMail {
 public:
  enum class Way { kForward, kBackward };

  PipelineMail(std::vector<Device> devices, std::size_t num_micro_batches, Duration timeout);

  /// For `stage`.
  void put(Way way, std::size_t stage, std::size_t micro_batch, Tensor value);
  /// Throws kDeadlineExceeded naming both stages, kAborted once a stage has failed.
  Tensor take(Way way, std::size_t stage, std::size_t micro_batch);

  /// The stage's work ends, with an error or without; the first error ends the others' waits.
  void end(std::exception_ptr error);
  /// Waits until all stages have ended, or for one timeout after the first error. Whether all have.
  bool wait_for_end();
  bool has_ended() const;
  /// After wait_for_end(): the first error, or nullptr.
  std::exception_ptr error() const;

  /// "stage 1 (cpu:1)".
  std::string name_of(std::size_t stage) const;

 private:
  using Shelf = std::vector<std::vector<Tensor>>;  // [stage][micro-batch]
  Shelf& shelf(Way way) TUTTI_REQUIRES(mutex_) {
    return way == Way::kForward ? forward_ : backward_;
  }

  const std::vector<Device> devices_;
  const Duration timeout_;
  mutable Mutex mutex_;
  CondVar condition_;
  Shelf forward_ TUTTI_GUARDED_BY(mutex_);
  Shelf backward_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_ended_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
