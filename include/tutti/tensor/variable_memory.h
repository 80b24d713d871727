// The elements of a variable: shared with the tensors that were read until the next write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Copy on write, and a fixed place while captured steps (StepRecorder) hold its address. Not
/// synchronised.
class VariableMemory : public std::enable_shared_from_this<VariableMemory> {
 public:
  /// Shares the elements of `initial_value` when they are on `device`.
  VariableMemory(const Tensor& initial_value, Device device);

  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  Device device() const { return value_.device(); }

  /// Never changes afterwards: shares the elements, or is a copy while they are pinned (unless the
  /// reading step is itself being captured).
  Tensor read() const;
  /// For writing in place.
  MutableTensor& writable();
  /// Takes over the elements of `value`, which is on device().
  void assign(const Tensor& value);

  /// Until as many unpin(), the elements' place is the same whenever settle() has been called.
  void pin();
  void unpin();
  void settle();

 private:
  bool is_moved() const;
  bool is_alone_in_place() const;
  void note_use() const;

  MutableTensor value_;
  MutableTensor pinned_;  // the fixed place; shares its storage with value_ when settled
  int num_pins_ = 0;
};

}  // namespace tutti
