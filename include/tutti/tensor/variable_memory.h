// Elements of a variable. Tensors read from the variable share them until the next write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Copy-on-write storage for a variable's elements. They stay at a fixed address while captured
/// steps (StepRecorder) use the variable. Not thread-safe.
class VariableMemory : public std::enable_shared_from_this<VariableMemory> {
 public:
  /// Shares the elements of `initial_value` if `device` and the device that stores them are CPU
  /// devices with the same memory; copies them otherwise.
  VariableMemory(const Tensor& initial_value, Device device);

  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  Device device() const { return value_.device(); }

  /// Returns a snapshot of the value. The tensor shares the elements. While they are pinned, it is
  /// a copy instead, except in a step that is being captured.
  Tensor read() const;
  /// Returns the elements for writing in place.
  MutableTensor& writable();
  /// Sets the elements to those of `value`, which must be on device(). May share them.
  void assign(const Tensor& value);

  /// pin() fixes the address of the elements until the matching unpin(); calls may be nested.
  /// settle() moves the current elements to the fixed address.
  void pin();
  void unpin();
  void settle();

 private:
  bool is_moved() const;
  bool is_alone_in_place() const;
  void note_use() const;

  MutableTensor value_;
  MutableTensor pinned_;  // storage at the fixed address; settle() makes value_ share it
  int num_pins_ = 0;
};

}  // namespace tutti
