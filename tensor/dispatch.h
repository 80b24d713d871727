// The one door through which every operation passes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

/// Sees every operation after its kernel ran: tapes, traces, scans. Observers form a stack per
/// thread.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(const OpCall& call, std::span<const Tensor> outputs) = 0;
  /// `to` is the value of `from` on another device (transfers.h). Default: nothing.
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
/// are transferred first (transfers.h). An output without elements is made without calling a
/// kernel; a kernel that sees an input without elements must cope (weights' gradients of an empty
/// batch are zeros). Throws kUnimplemented naming op, dtype and device when there is no kernel;
/// outside of device scopes kInvalidArgument naming the caller's line when the inputs are on
/// several devices; in a scope of another process kUnavailable.
std::vector<Tensor> dispatch(OpCall call);
/// The same for operations with one output.
Tensor dispatch_one(OpCall call);

}  // namespace tutti
