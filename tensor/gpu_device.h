// Host-side handle of a GPU (device gpu:n): memory, queued work, and waiting for that work.
// SPDX-License-Identifier: Apache-2.0
//
// Declared here and implemented in gpu/, so that tensor code can call it directly.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/buffer_allocator.h"
#include "tensor/device_backend.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class Downloads;
class PinnedRing;
class Uploads;
struct LogicalGpu;

/// Work in GPU streams that completes only if other GPUs or processes participate, such as a
/// collective. Thread-safe.
class PeerWork {
 public:
  virtual ~PeerWork() = default;
  /// Returns true if some of the work may be unfinished, or if work was abandoned.
  virtual bool is_pending() = 0;
  /// Abandons work that has failed or is taking too long. If any work has been abandoned, now or
  /// earlier, throws the error that caused this.
  virtual void check() = 0;
  /// Called before the launch of a graph that may contain peer work. Throws if that work cannot
  /// run.
  virtual void check_graph() = 0;
  /// Called after the launch of the graph, which runs from `began` to `ended`.
  virtual void note_graph(std::shared_ptr<DeviceEvent> began,
                          std::shared_ptr<DeviceEvent> ended) = 0;
};

/// Monitor of one device's peer work: while such work is pending, host threads check it as they
/// wait. Thread-safe.
class PeerWatch {
 public:
  using List = std::vector<std::shared_ptr<PeerWork>>;

  /// Makes every later wait check `work`, until `work` is destroyed.
  void add(const std::shared_ptr<PeerWork>& work);
  /// Returns the added work that has not been destroyed yet.
  List list() const;
  /// Waits for `event`. Throws if check() of pending peer work throws.
  void wait(const DeviceEvent& event) const;
  /// Same as wait(), but returns false if `event` is not done by `deadline`.
  bool wait_until(const DeviceEvent& event, TimePoint deadline) const;

 private:
  mutable Mutex mutex_;
  mutable std::vector<std::weak_ptr<PeerWork>> works_ TUTTI_GUARDED_BY(mutex_);
};

/// One logical GPU. Calls enqueue work in its streams, in call order. The only calls that wait for
/// the GPU are copies to host memory, synchronize() and functions whose comments say so. Lives as
/// long as the process. Thread-safe: a mutex lets one thread at a time use the context.
class GpuDevice {
 public:
  static constexpr std::size_t kAlignment = 256;  // alignment of device memory, in bytes

  /// Returns the number of GPU devices, which are gpu:0, gpu:1, ... Throws the same errors as
  /// logical_gpus().
  static int count();
  /// Same as gpu_unavailable_reason().
  static const std::string& why_none();
  /// Opens the device on first use. Throws kUnavailable, with the reason and the remedy, if there
  /// is no such device.
  static GpuDevice& of(Device device);
  /// Returns the device if it is open; nullptr otherwise. Takes no lock.
  static GpuDevice* opened(Device device);

  /// Callers that access members of the result must include tutti/tensor/gpu/gpus.h.
  const LogicalGpu& description() const { return description_; }
  Device device() const { return device_; }
  DeviceBackend& backend() const { return backend_; }
  /// Returns the allocator of buffers for the compute stream. Freed buffers may be reused at once,
  /// because that stream runs in order. If another stream uses a buffer, the compute stream must
  /// wait for that use before the buffer is freed.
  BufferAllocator& allocator() { return *allocator_; }
  /// Allocates from allocator(), or from the memory of the step that this thread is capturing.
  BufferRef allocate(std::size_t bytes);
  /// Returns cached memory to the device.
  void trim();

  /// Calls `use(context)` with the context locked, after launching the pending updates
  /// (update_later()).
  template <class Use>
  decltype(auto) with_context(const Use& use) {
    MutexLock lock(mutex_);
    begin_work();
    return use(*context_);
  }

  /// Enqueues the operation's kernel on the compute stream. Throws kUnimplemented, naming the op,
  /// dtype and device, if there is no such kernel.
  void run(const OpCall& call, std::span<const MutableTensor> outputs);
  void fill(const MutableTensor& tensor, double value);
  /// Fills `bytes` bytes at `data` with zeros.
  void clear(void* data, std::size_t bytes);
  /// Writes the number of non-finite elements of tensor i to counts[i], [n] int64 on this device.
  void count_non_finite(std::span<const Tensor> tensors, const MutableTensor& counts);
  /// Writes the sum of squares of floating-point tensor i to sums[i]. `sums` is [n] float64 on this
  /// device.
  void sums_of_squares(std::span<const Tensor> tensors, const MutableTensor& sums);
  /// Copies from host memory. Waits only for room in pinned memory. The host memory may change
  /// after the call returns.
  void copy_from_host(void* to, const void* from, std::size_t bytes);
  /// Returns a device copy of host memory, for work that is queued later. The copy runs
  /// concurrently with work that is already queued. The host memory may change after the call
  /// returns.
  BufferRef upload(const void* from, std::size_t bytes);
  /// Copies to host memory. Waits for the preceding work and for the copy.
  void copy_to_host(void* to, const void* from, std::size_t bytes);
  /// Copies from the memory of `from`, which may be this device. The copy runs after the work that
  /// is already queued on `from`, and before later work on `from`. Without peer access, the copy
  /// passes through the host and waits.
  void copy_from_peer(void* to, Device from, const void* data, std::size_t bytes);
  /// Waits for all work in the device's streams. Throws if that work failed.
  void synchronize();
  /// Registers `work`: until it is destroyed, every later wait for this device checks it.
  void watch(const std::shared_ptr<PeerWork>& work);
  const PeerWatch& peers() const { return peers_; }

  /// Delays one variable's update until other work is queued, so that one launch performs many
  /// updates. Keeps `buffers` alive until that launch. `buffers` need not include the weights and
  /// slots, because the next owner of their memory queues its work after the launch. `step_values`:
  /// as in DeviceUpdate.
  void update_later(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item,
                    std::vector<BufferRef> buffers, const double* step_values = nullptr);

  AllocatorStatistics statistics() const { return allocator_->statistics(); }

  /// `description` and `backend` must outlive this object.
  GpuDevice(const LogicalGpu& description, DeviceBackend& backend);
  ~GpuDevice();

 private:
  struct PendingUpdates;
  MemorySource memory(DeviceContext& context);
  /// Called before any other work: launches the pending updates.
  void begin_work() TUTTI_REQUIRES(mutex_);
  void flush_updates() TUTTI_REQUIRES(mutex_);
  void stage(DeviceContext& context, std::byte* to, const std::byte* from, std::size_t bytes)
      TUTTI_REQUIRES(mutex_);
  template <class Put>
  void wait_for(const Put& put);
  void trim_uploads();
  bool reaches(const GpuDevice& other) const;

  const LogicalGpu& description_;
  const Device device_;
  DeviceBackend& backend_;
  mutable Mutex mutex_;
  std::unique_ptr<DeviceContext> context_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<BufferAllocator> allocator_;
  PeerWatch peers_;
  std::unique_ptr<Downloads> downloads_;
  std::unique_ptr<PinnedRing> staging_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<PendingUpdates> pending_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<bool> has_pending_{false};
};

}  // namespace tutti
