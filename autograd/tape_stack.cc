// The tapes that record on this thread.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/tape_stack.h"

#include <utility>

#include "tutti/autograd/recording.h"

namespace tutti::internal {
namespace {

/// The innermost attached recording; the others hang on Recording::outer.
Recording*& innermost() {
  thread_local Recording* recording = nullptr;
  return recording;
}

}  // namespace

bool& recording_stopped() {
  thread_local bool stopped = false;
  return stopped;
}

SeparateTapes::SeparateTapes()
    : innermost_(std::exchange(innermost(), nullptr)),
      stopped_(std::exchange(recording_stopped(), false)) {}

SeparateTapes::~SeparateTapes() {
  innermost() = innermost_;
  recording_stopped() = stopped_;
}

bool any_tape_records() { return innermost() != nullptr && !recording_stopped(); }

void tapes_see_read(const Variable& variable, const Tensor& value) {
  for_each_recording([&](Recording& recording) { recording.on_read(variable, value); });
}

void tapes_see_rows(const Variable& variable, const Tensor& rows,
                    const BackwardFunction& backward) {
  for_each_recording(
      [&](Recording& recording) { recording.on_read_of_rows(variable, rows, backward); });
}

void attach(Recording& recording) {
  recording.outer = innermost();
  innermost() = &recording;
}

void detach(Recording& recording) {
  Recording** link = &innermost();
  while (*link && *link != &recording) link = &(*link)->outer;
  TUTTI_CHECK(*link == &recording,
              "GradientTape: must be used and destroyed on the thread that made it");
  *link = recording.outer;
  recording.outer = nullptr;
}

void for_each_recording(const std::function<void(Recording&)>& visit) {
  if (recording_stopped()) return;
  for (Recording* recording = innermost(); recording; recording = recording->outer) {
    visit(*recording);
  }
}

}  // namespace tutti::internal
