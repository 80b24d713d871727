// Waiting for what another stage gives.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/pipeline_mail.h"

#include <utility>

namespace tutti::internal {

PipelineMail::PipelineMail(std::vector<Device> devices, std::size_t num_micro_batches,
                           Duration timeout)
    : devices_(std::move(devices)),
      timeout_(timeout),
      forward_(devices_.size(), std::vector<Tensor>(num_micro_batches)),
      backward_(devices_.size(), std::vector<Tensor>(num_micro_batches)) {}

std::string PipelineMail::name_of(std::size_t stage) const {
  return concat("stage ", stage, " (", devices_[stage], ")");
}

void PipelineMail::put(Way way, std::size_t stage, std::size_t micro_batch, Tensor value) {
  {
    MutexLock lock(mutex_);
    shelf(way)[stage][micro_batch] = std::move(value);
  }
  condition_.notify_all();
}

Tensor PipelineMail::take(Way way, std::size_t stage, std::size_t micro_batch) {
  MutexLock lock(mutex_);
  Tensor& place = shelf(way)[stage][micro_batch];
  condition_.wait_for(mutex_, timeout_, [&]() TUTTI_REQUIRES(mutex_) {
    return place.defined() || error_ != nullptr;
  });
  if (place.defined()) return std::exchange(place, Tensor());
  if (error_) {
    fail(ErrorCode::kAborted, "Pipeline: ", name_of(stage), " stopped, for another stage failed");
  }
  const bool forward = way == Way::kForward;
  fail(ErrorCode::kDeadlineExceeded, "Pipeline: no ", forward ? "activations" : "gradients",
       " of micro-batch ", micro_batch, " came from ", name_of(forward ? stage - 1 : stage + 1),
       " within ", std::chrono::duration<double>(timeout_).count(),
       " s; expected them while it works; try a longer PipelineOptions::timeout if it is slow");
}

void PipelineMail::end(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    ++num_ended_;
    if (error && !error_) error_ = std::move(error);
  }
  condition_.notify_all();
}

bool PipelineMail::wait_for_end() {
  MutexLock lock(mutex_);
  const auto all = [&]() TUTTI_REQUIRES(mutex_) { return num_ended_ == devices_.size(); };
  const auto all_or_error = [&]() TUTTI_REQUIRES(mutex_) { return all() || error_ != nullptr; };
  // Stages that wait have deadlines of their own; a stage that computes may take its time.
  while (!condition_.wait_for(mutex_, timeout_, all_or_error)) {
  }
  return condition_.wait_for(mutex_, timeout_, all);
}

bool PipelineMail::has_ended() const {
  MutexLock lock(mutex_);
  return num_ended_ == devices_.size();
}

std::exception_ptr PipelineMail::error() const {
  MutexLock lock(mutex_);
  return error_;
}

}  // namespace tutti::internal
