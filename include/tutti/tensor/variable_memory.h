// The elements of a variable, shared with the tensors that were read until the next write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Elements of a variable: copied on write, and at a fixed address while captured steps
/// (StepRecorder) use it. Not thread-safe.
class VariableMemory : public std::enable_shared_from_this<VariableMemory> {
 public:
  /// Shares the elements of `initial_value` on CPU devices with one memory; copies them otherwise.
  VariableMemory(const Tensor& initial_value, Device device);

  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  Device device() const { return value_.device(); }

  /// Returns the value, which never changes afterwards. Shares the elements, or copies them while
  /// they are pinned (unless the reading step is itself being captured).
  Tensor read() const;
  /// Returns the elements for writing in place.
  MutableTensor& writable();
  /// Takes over the elements of `value`, which must be on device().
  void assign(const Tensor& value);

  /// Pins the elements until unpin() is called as often: settle() puts them at the same address.
  void pin();
  void unpin();
  void settle();

 private:
  bool is_moved() const;
  bool is_alone_in_place() const;
  void note_use() const;

  MutableTensor value_;
  MutableTensor pinned_;  // at the fixed address; shares its storage with value_ when settled
  int num_pins_ = 0;
};

}  // namespace tutti
