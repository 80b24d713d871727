// How a value of a step comes to the host, or why it does not.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/step_value.h"

#include <utility>

#include "tensor/op_checks.h"

namespace tutti::internal {

std::size_t num_bytes_of(const TensorSpec& spec) {
  return size_of(spec.dtype) * static_cast<std::size_t>(spec.shape.num_elements());
}

std::string StepValue::maker() const { return who(what_, where_); }

std::shared_ptr<PjrtBuffer> StepValue::buffer() const {
  MutexLock lock(mutex_);
  return buffer_;
}

void StepValue::set_buffer(std::shared_ptr<PjrtBuffer> buffer) {
  MutexLock lock(mutex_);
  buffer_ = std::move(buffer);
}

void StepValue::give_up() {
  MutexLock lock(mutex_);
  is_lost_ = !buffer_;
}

void StepValue::bring(std::byte* to) {
  MutexLock lock(mutex_);
  if (is_home_) return;
  if (buffer_) {
    buffer_->to_host(to, num_bytes_of(spec_));
    is_home_ = true;
    return;
  }
  if (is_lost_) {
    fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
         " was to be computed by a step that failed; expected a step that ran; try restoring the "
         "last checkpoint");
  }
  fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
       " is read on the host within the step that XLA is to compute, before it is computed; "
       "expected a step that only works with tensors; try returning the tensor and reading it "
       "after run()");
}

}  // namespace tutti::internal
