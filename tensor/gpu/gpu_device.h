// The object behind a device gpu:n: its context, its memory, and the one thread at a time that uses
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/accelerator.h"
#include "tensor/buffer_allocator.h"
#include "tensor/device_backend.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class Downloads;
class PeerWatch;
class PeerWork;
class PinnedRing;
class Uploads;

/// One logical GPU. Work is put into its streams in the order of the calls; nothing here waits for
/// the GPU but copies to host memory, synchronize() and what says so. Lives as long as the process.
/// Any thread: a mutex sees to it that one at a time uses the context.
class GpuDevice final : public Accelerator {
 public:
  static constexpr std::size_t kAlignment = 256;  // of its memory

  /// Opened at first use. Throws kUnavailable, with reason and remedy, when there is no such
  /// device.
  static GpuDevice& of(Device device);
  /// The device if it is open; nullptr otherwise. Takes no lock.
  static GpuDevice* opened(Device device);

  const LogicalGpu& description() const { return description_; }
  Device device() const { return {DeviceType::kGpu, description_.index}; }
  DeviceBackend& backend() const { return backend_; }
  /// Buffers are for work of the compute stream: freed, they may be handed out again at once,
  /// because that stream runs in order. A user of one in another stream makes the compute
  /// stream wait for that use before the buffer is freed.
  BufferAllocator& allocator() override { return *allocator_; }
  BufferRef allocate(std::size_t bytes) override;

  /// Calls `use(context)` with the context locked, after the updates that wait (update_later).
  template <class Use>
  decltype(auto) with_context(const Use& use) {
    MutexLock lock(mutex_);
    begin_work();
    return use(*context_);
  }

  /// Puts the operation's kernel into the compute stream. Throws kUnimplemented naming op, dtype
  /// and device.
  void run(const OpCall& call, std::span<const MutableTensor> outputs) override;
  void fill(const MutableTensor& tensor, double value) override;
  void clear(void* data, std::size_t bytes) override;
  /// counts[i], [n] int64 on this device: how many elements of tensor i are NaN or infinite.
  void count_non_finite(std::span<const Tensor> tensors, const MutableTensor& counts);
  void sums_of_squares(std::span<const Tensor> tensors, const MutableTensor& sums) override;
  /// Waits for nothing but room in pinned memory.
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  BufferRef upload(const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  /// Without peer access by way of the host, which waits.
  void copy_from_peer(void* to, Device from, const void* data, std::size_t bytes) override;
  /// Waits for all that was put into its streams. Throws what went wrong there.
  void synchronize();
  /// From now on every wait for this device asks `work`, as long as it lives.
  void watch(const std::shared_ptr<PeerWork>& work);
  const PeerWatch& peers() const { return *peers_; }

  /// Keeps one variable's update until other work comes, so that many become one launch. `buffers`
  /// stay alive until then; those of weights and slots need not be among them, for whoever gets
  /// their memory next puts its work behind the launch. `step_values`: as in DeviceUpdate.
  void update_later(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item,
                    std::vector<BufferRef> buffers, const double* step_values = nullptr);

  void trim() override;
  AllocatorStatistics statistics() const { return allocator_->statistics(); }

  GpuDevice(const LogicalGpu& description, DeviceBackend& backend);
  ~GpuDevice() override;

 private:
  struct PendingUpdates;
  class Memory;
  /// What comes before any other work.
  void begin_work() TUTTI_REQUIRES(mutex_);
  void flush_updates() TUTTI_REQUIRES(mutex_);
  void stage(DeviceContext& context, std::byte* to, const std::byte* from, std::size_t bytes)
      TUTTI_REQUIRES(mutex_);
  template <class Put>
  void wait_for(const Put& put);
  void trim_uploads();
  bool reaches(const GpuDevice& other) const;

  const LogicalGpu description_;
  DeviceBackend& backend_;
  mutable Mutex mutex_;
  std::unique_ptr<DeviceContext> context_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<BufferAllocator> allocator_;
  std::unique_ptr<PeerWatch> peers_;
  std::unique_ptr<Downloads> downloads_;
  std::unique_ptr<PinnedRing> staging_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<PendingUpdates> pending_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<bool> has_pending_{false};
};

namespace internal {
struct GpusForTest {
  std::vector<LogicalGpu> gpus;
  DeviceBackend* backend = nullptr;
};
/// While `gpus` is not nullptr, logical_gpus() and gpu_backend() answer from it. Only for tests, in
/// one thread; call close_gpus_for_test() before and after.
void set_gpus_for_test(const GpusForTest* gpus);
/// Closes the opened devices, so that the next use opens them anew. Only where no tensor lives on
/// one: for tests that replace the backend.
void close_gpus_for_test();
}  // namespace internal

}  // namespace tutti
