// The one door through which every operation passes, and transfers from device to device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// The one door through which every operation passes.

/// Sees every operation after its kernel ran: tapes, traces, scans. Observers form a stack per
/// thread.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(const OpCall& call, std::span<const Tensor> outputs) = 0;
  /// `to` is the value of `from` on another device (transfer()). Default: nothing.
  virtual void on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where);
};

/// Makes `observer` see the operations of this thread until destroyed. Need not be destroyed in
/// stack order.
class ObserverScope {
 public:
  explicit ObserverScope(OpObserver& observer);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  OpObserver* observer_;
};

/// While it lives this thread has the observers of a new one: none. What is made meanwhile must be
/// destroyed before.
class SeparateObservers {
 public:
  SeparateObservers();
  ~SeparateObservers();
  SeparateObservers(const SeparateObservers&) = delete;
  SeparateObservers& operator=(const SeparateObservers&) = delete;

 private:
  std::vector<OpObserver*> observers_;
};

/// Allocates the outputs, finds the kernel for (device, op, dtype of input 0), runs it and tells
/// the observers. In a device scope the operation runs on its device, and inputs that are elsewhere
/// are transferred first (transfer()). An output without elements is made without calling a
/// kernel; a kernel that sees an input without elements must cope (weights' gradients of an empty
/// batch are zeros). Throws kUnimplemented naming op, dtype and device when there is no kernel;
/// outside of device scopes kInvalidArgument naming the caller's line when the inputs are on
/// several devices; in a scope of another process kUnavailable.
std::vector<Tensor> dispatch(OpCall call);
/// The same for operations with one output.
Tensor dispatch_one(OpCall call);

// Values that move from device to device: the transfer that tapes know, and a log of all.

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

}  // namespace tutti
