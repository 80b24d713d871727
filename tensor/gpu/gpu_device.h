// The object behind a device gpu:n: its context, its memory, and the one thread at a time that uses
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// One logical GPU. Work is put into its streams in the order of the calls; nothing here waits for
/// the GPU but copies to host memory, synchronize() and what says so. Lives as long as the process.
/// Any thread: a mutex sees to it that one at a time uses the context.
class GpuDevice {
 public:
  /// Opened at first use. Throws kUnavailable, with reason and remedy, when there is no such
  /// device.
  static GpuDevice& of(Device device);

  const LogicalGpu& description() const { return description_; }
  Device device() const { return {DeviceType::kGpu, description_.index}; }

  /// Calls `use(context)` with the context locked, after the updates that wait (update_later).
  template <class Use>
  decltype(auto) with_context(const Use& use) {
    MutexLock lock(mutex_);
    flush_updates();
    return use(*context_);
  }

  /// Puts the operation's kernel into the compute stream. Throws kUnimplemented naming op, dtype
  /// and device.
  void run(const OpCall& call, std::span<const MutableTensor> outputs);
  void fill(const MutableTensor& tensor, double value);
  /// Host memory may change once this has returned.
  void copy_from_host(void* to, const void* from, std::size_t bytes);
  /// Waits for the work before it and for the copy.
  void copy_to_host(void* to, const void* from, std::size_t bytes);
  /// From another GPU's memory (or within this one): after the work that `from` was given, and
  /// `from`'s later work waits for it. Without peer access by way of the host, which waits.
  void copy_from_gpu(void* to, GpuDevice& from, const void* data, std::size_t bytes);
  /// Waits for all that was put into its streams. Throws what went wrong there.
  void synchronize();

  /// Keeps one variable's update until other work comes, so that many become one launch. The
  /// buffers stay alive until then.
  void update_later(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item,
                    std::vector<BufferRef> buffers);

  AllocatorStatistics statistics() const;

 private:
  friend class GpuMemory;
  explicit GpuDevice(const LogicalGpu& description);
  void flush_updates() TUTTI_REQUIRES(mutex_);

  const LogicalGpu description_;
  Mutex mutex_;
  std::unique_ptr<DeviceContext> context_ TUTTI_GUARDED_BY(mutex_);
  struct PendingUpdates;
  std::unique_ptr<PendingUpdates> pending_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
