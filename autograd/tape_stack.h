// The tapes that record on this thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

class Recording;

/// Whether some tape of this thread would see a read or an operation now.
bool any_tape_records();
/// Tells the tapes that `value` (an identity of its own) was read from `variable`.
void tapes_see_read(const Variable& variable, const Tensor& value);

/// Tells them that `rows` are some of the variable's; `backward` makes the gradient of the whole
/// variable of that of `rows`.
void tapes_see_rows(const Variable& variable, const Tensor& rows, const BackwardFunction& backward);

/// Set while a GradientTape::StopRecording lives.
bool& recording_stopped();

/// While it lives this thread has the tapes of a new one: none. What is attached meanwhile must be
/// detached before.
class SeparateTapes {
 public:
  SeparateTapes();
  ~SeparateTapes();
  SeparateTapes(const SeparateTapes&) = delete;
  SeparateTapes& operator=(const SeparateTapes&) = delete;

 private:
  SeparateObservers no_observers_;
  Recording* innermost_;
  bool stopped_;
};

/// Puts a recording among those of this thread, and takes it out again (in any order).
void attach(Recording& recording);
void detach(Recording& recording);
/// Calls `visit` for each attached recording.
void for_each_recording(const std::function<void(Recording&)>& visit);

}  // namespace tutti::internal
