// Values that move from device to device: the transfer that tapes know, and a log of all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/op.h"

namespace tutti {

/// `value` on `device`; itself when it is there already. Unlike Tensor::to() it is seen by tapes:
/// the gradient moves back to where `value` is. What a device scope does with the inputs of an
/// operation; tf.identity in a device scope. Throws kFailedPrecondition for an undefined value.
Tensor transfer(const Operand& value, Device device);

/// One value that moved.
struct Transfer {
  Device from, to;
  Shape shape;
  DType dtype = DType::kFloat32;
  std::size_t bytes = 0;
  SourceLocation where;  // of the operation that wanted it
  /// "cpu:0 -> cpu:1: float32 [8,16], 512 bytes".
  std::string to_string() const;
};

std::ostream& operator<<(std::ostream& out, const Transfer& transfer);

/// Notes the transfers of this thread from construction to destruction, forward and backward.
class TransferLog final : public OpObserver {
 public:
  TransferLog() : scope_(*this) {}
  const std::vector<Transfer>& transfers() const { return transfers_; }
  std::size_t count() const { return transfers_.size(); }
  std::size_t bytes() const { return bytes_; }
  /// Forgets what it has noted.
  void clear();

  void on_op(const OpCall&, std::span<const Tensor>) override {}
  void on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) override;

 private:
  std::vector<Transfer> transfers_;
  std::size_t bytes_ = 0;
  ObserverScope scope_;
};

namespace internal {
/// `value`, which is elsewhere, on `device`; the observers of this thread are told.
Tensor transferred(const Tensor& value, Device device, const SourceLocation& where);
}  // namespace internal

}  // namespace tutti
