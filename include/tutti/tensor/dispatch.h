// Dispatch of operations: the common entry point, observers, and transfers between devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Entry point for all operations, and observers of operations.

/// Observer that is called after each operation of a thread; base class of tapes, traces and logs.
/// Observers form a stack per thread.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(const OpCall& call, std::span<const Tensor> outputs) = 0;
  /// Called after transfer() has copied `from` to another device as `to`. The default does nothing.
  virtual void on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where);
};

/// Scope that registers `observer` for this thread's operations. Scopes need not be destroyed in
/// reverse order.
class ObserverScope {
 public:
  explicit ObserverScope(OpObserver& observer);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  OpObserver* observer_;
};

/// Scope in which the observers of this thread are inactive, as in a new thread. ObserverScopes
/// created within it must be destroyed first.
class SeparateObservers {
 public:
  SeparateObservers();
  ~SeparateObservers();
  SeparateObservers(const SeparateObservers&) = delete;
  SeparateObservers& operator=(const SeparateObservers&) = delete;

 private:
  std::vector<OpObserver*> observers_;
};

/// Runs an operation: allocates the outputs, runs the kernel for (device, op, dtype of input 0),
/// and notifies the observers. In a device scope, the operation runs on the scope's device, and
/// inputs from other devices are transferred first (transfer()). No kernel is called if all outputs
/// are empty; kernels must accept empty inputs (weight gradients of an empty batch are zeros).
/// Throws kUnimplemented, naming op, dtype and device, if there is no kernel. Outside device
/// scopes, throws kInvalidArgument, naming the caller's line, if the inputs are on several devices.
/// Throws kUnavailable in a scope of another process.
std::vector<Tensor> dispatch(OpCall call);
/// Same as dispatch(), but for operations with one output.
Tensor dispatch_one(OpCall call);

// Transfers of values between devices, recorded on tapes, and a log of these transfers.

/// Returns `value` on `device`; `value` itself if it is already on that device. Unlike
/// Tensor::to(), transfer() is recorded on tapes: the gradient is moved back to the device of
/// `value`. Device scopes use transfer() for the inputs of operations. Equivalent of tf.identity in
/// a device scope. Throws kFailedPrecondition for an undefined value.
Tensor transfer(const Operand& value, Device device);

/// One transfer of a value.
struct Transfer {
  Device from, to;
  Shape shape;
  DType dtype = DType::kFloat32;
  std::size_t bytes = 0;
  SourceLocation where;  // line of the operation that needed the transfer
  /// Returns "cpu:0 -> cpu:1: float32 [8,16], 512 bytes".
  std::string to_string() const;
};

std::ostream& operator<<(std::ostream& out, const Transfer& transfer);

/// Log of this thread's transfers, forward and backward, from construction to destruction.
class TransferLog final : public OpObserver {
 public:
  TransferLog() : scope_(*this) {}
  const std::vector<Transfer>& transfers() const { return transfers_; }
  std::size_t count() const { return transfers_.size(); }
  std::size_t bytes() const { return bytes_; }
  /// Clears the log.
  void clear();

  void on_op(const OpCall&, std::span<const Tensor>) override {}
  void on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) override;

 private:
  std::vector<Transfer> transfers_;
  std::size_t bytes_ = 0;
  ObserverScope scope_;
};

}  // namespace tutti
