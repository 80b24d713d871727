// Reading, writing and pinning the elements of a variable.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/variable_memory.h"

#include "tensor/step_hooks.h"

namespace tutti {

VariableMemory::VariableMemory(const Tensor& initial_value, Device device) {
  // On CPUs and in a trace, the variable shares the elements of the initial value, so memory is
  // allocated only in the other cases.
  if (device.type != DeviceType::kCpu && !StepTracer::current()) {
    value_ = MutableTensor(initial_value.shape(), initial_value.dtype(), device);
  }
  value_.assign(initial_value.to(device));
}

void VariableMemory::note_use() const {
  if (StepRecorder* const recorder = StepRecorder::current()) {
    recorder->uses(std::const_pointer_cast<VariableMemory>(shared_from_this()));
  }
}

bool VariableMemory::is_moved() const {
  return num_pins_ > 0 && value_.address() != pinned_.address();
}

bool VariableMemory::is_alone_in_place() const {
  return num_pins_ > 0 && !is_moved() && value_.num_sharers() == 2;
}

Tensor VariableMemory::read() const {
  note_use();
  const Tensor shared = value_.freeze();
  if (StepTracer* const tracer = StepTracer::current()) tracer->note_variable(shared);
  // Replaying a captured step writes to the variable's fixed address even while the returned tensor
  // shares that memory, so the tensor must be a copy.
  const bool may_change = num_pins_ > 0 && !is_moved() && !StepRecorder::current();
  return may_change ? shared.copy() : shared;
}

MutableTensor& VariableMemory::writable() {
  note_use();
  if (!is_alone_in_place()) value_.make_unique();
  return value_;
}

void VariableMemory::assign(const Tensor& value) {
  note_use();
  if (num_pins_ == 0) return value_.assign(value);
  if (is_alone_in_place()) return value_.write(value);
  // Copies the value, because it may be stored at another variable's fixed address, whose content
  // may change before the value is moved to this variable's.
  value_.assign(value.to(device()).copy());
}

void VariableMemory::pin() {
  if (num_pins_++ > 0) return settle();
  value_.make_unique();  // tensors that were read earlier must not change in replays
  pinned_ = value_;
}

void VariableMemory::unpin() {
  if (--num_pins_ == 0) pinned_ = MutableTensor();
}

void VariableMemory::settle() {
  if (!is_moved()) return;
  pinned_.write(value_.freeze());
  value_ = pinned_;
}

}  // namespace tutti
