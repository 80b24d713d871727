// A device whose memory the host cannot touch, as tensors and operations reach it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tutti/tensor/buffer.h"
#include "tutti/tensor/device.h"

namespace tutti {

class BufferAllocator;
class MutableTensor;
class Tensor;
struct OpCall;

/// What stands behind gpu:n. This folder knows nothing else of GPUs; the static functions are
/// those of the implementation, which gpu/gpu_device.h is. Work is queued in the order of the
/// calls; only copies to the host wait for it. Lives as long as the process. Any thread.
class Accelerator {
 public:
  /// How many there are, from gpu:0 on. Throws as logical_gpus().
  static int count();
  /// One line: what is missing and what to do about it. Empty when there is one.
  static const std::string& why_none();
  /// Whether it is in use already. Takes no lock.
  static bool is_open(Device device);
  /// Opened at first use. Throws kUnavailable, with reason and remedy, when there is no such
  /// device.
  static Accelerator& of(Device device);

  virtual ~Accelerator() = default;

  virtual BufferAllocator& allocator() = 0;
  /// Of allocator(), or of the memory that work which is being captured keeps for itself.
  virtual BufferRef allocate(std::size_t bytes) = 0;
  /// Gives memory that waits back to the device.
  virtual void trim() = 0;

  /// Throws kUnimplemented naming op, dtype and device.
  virtual void run(const OpCall& call, std::span<const MutableTensor> outputs) = 0;
  virtual void fill(const MutableTensor& tensor, double value) = 0;
  /// Sets bytes to 0.
  virtual void clear(void* data, std::size_t bytes) = 0;
  /// sums[i], [n] float64 on this device: the sum of squares of the floating tensor i.
  virtual void sums_of_squares(std::span<const Tensor> tensors, const MutableTensor& sums) = 0;

  /// Host memory may change once this has returned.
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) = 0;
  /// A copy of host memory, of work that comes from now on, beside the work that is queued already.
  /// Host memory may change once this has returned.
  virtual BufferRef upload(const void* from, std::size_t bytes) = 0;
  /// Waits for the work before it and for the copy.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  /// From another one's memory (or within this one): after the work that `from` was given, and
  /// `from`'s later work waits for it.
  virtual void copy_from_peer(void* to, Device from, const void* data, std::size_t bytes) = 0;
};

}  // namespace tutti
