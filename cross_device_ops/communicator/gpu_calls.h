// One rank's collective calls on GPU memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "cross_device_ops/collective_engine.h"
#include "tensor/device_backend.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/buffer.h"

namespace tutti {
class GpuDevice;
}

namespace tutti::internal {

struct CallRequest;
class CommunicatorState;

/// Carries out calls on GPU memory: with NCCL if all ranks can use it, otherwise with the
/// communicator's engine on pinned host memory. All work except NCCL's own is queued in the
/// device's compute stream. The compute stream first waits for the caller's stream; afterwards, the
/// caller's stream waits for the compute stream. Thread safety: begin() runs on the caller's thread
/// and poll() on any thread; all other functions run on one thread at a time.
class GpuCalls {
 public:
  explicit GpuCalls(CommunicatorState& state);
  /// Waits at most a few seconds for NCCL and for copies that use pinned memory.
  ~GpuCalls();
  GpuCalls(const GpuCalls&) = delete;
  GpuCalls& operator=(const GpuCalls&) = delete;

  /// State recorded when a call is made.
  struct Begun {
    std::shared_ptr<void> selection;     // see DeviceBackend::keep_selection()
    std::shared_ptr<DeviceEvent> event;  // marks the end of the stream's earlier work
  };
  /// Records the call's position in its stream. Throws kUnavailable if there is no such GPU;
  /// kInvalidArgument if the GPU differs from that of earlier calls, or if a buffer is outside its
  /// memory; and kFailedPrecondition for a captured stream.
  Begun begin(const CallRequest& request);

  /// Executes a checked call whose begin() returned the event `begin`. With NCCL, returns when the
  /// work is queued in the streams; through the host, waits for the stream's earlier work.
  void execute(const CallRequest& request, const DeviceEvent& begin);
  /// Ends NCCL's work if a rank has aborted or exited; ends this communicator if NCCL has failed.
  /// Called about ten times a second.
  void poll();

 private:
  static GpuDevice& gpu_of(const CallRequest& request);
  std::shared_ptr<CrossDeviceOps> nccl() const;
  /// On the first call, agrees with the other ranks on whether NCCL or the hosts carry out calls.
  void connect(const CallRequest& request);
  void agree(int gpu, Communicator& aside);
  /// Returns true if NCCL carries out the call; the result is the same on all ranks.
  bool uses_nccl(const CallRequest& request) const;
  /// Carries out a call with NCCL. Requires: all ranks have joined the call.
  void execute_by_nccl(const CallRequest& request, const DeviceEvent& begin);
  void execute_by_host(const CallRequest& request, const DeviceEvent& begin, TimePoint deadline);
  void copy_alone(const CallRequest& request, const DeviceEvent& begin, TimePoint deadline);
  /// Calls body(); an error ends the calls on all ranks, because they wait for this rank.
  template <class Body>
  void for_all(const CallRequest& request, const Body& body);
  void wait(GpuDevice& gpu, const DeviceEvent& event, TimePoint deadline);

  CommunicatorState& state_;
  CollectiveEngine& engine_;
  std::optional<int> gpu_;  // set by begin()
  bool is_connected_ = false;
  std::atomic<bool> is_launching_{false};
  BufferRef staging_;                      // in pinned memory
  std::shared_ptr<DeviceEvent> staged_;    // end of the last copy to or from staging_
  std::optional<TimePoint> failed_since_;  // used by poll() only
  bool has_failed_ = false;                // used by poll() only
  mutable Mutex mutex_;
  std::shared_ptr<CrossDeviceOps> ops_ TUTTI_GUARDED_BY(mutex_);  // null without NCCL
};

}  // namespace tutti::internal
