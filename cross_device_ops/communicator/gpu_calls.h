// A rank's calls on memory of a GPU.
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

/// By NCCL where all ranks can, else by the host: in pinned memory, with the communicator's engine.
/// All work but NCCL's own goes into the device's compute stream, which waits for the caller's
/// stream before and for which that waits after. Threads: begin() by the caller, tend() by any,
/// the rest by one at a time.
class GpuCalls {
 public:
  explicit GpuCalls(CommunicatorState& state);
  /// Waits for NCCL and for copies of pinned memory, some seconds.
  ~GpuCalls();
  GpuCalls(const GpuCalls&) = delete;
  GpuCalls& operator=(const GpuCalls&) = delete;

  /// What is noted where a call is made.
  struct Begun {
    std::shared_ptr<void> selection;     // see DeviceBackend::keep_selection()
    std::shared_ptr<DeviceEvent> event;  // what the stream held
  };
  /// Throws kUnavailable where there is no such GPU, kInvalidArgument for another one than in
  /// earlier calls and for buffers that lie elsewhere, kFailedPrecondition for a captured stream.
  Begun begin(const CallRequest& request);

  /// Carries out a checked call whose begin() noted `begin`. Calls by NCCL return when the work is
  /// in the streams; those by the host wait for what is before the call in the stream.
  void execute(const CallRequest& request, const DeviceEvent& begin);
  /// Ends what NCCL does when a rank has aborted or is gone, and this communicator when NCCL has
  /// failed. About ten times a second.
  void tend();

 private:
  static GpuDevice& gpu_of(const CallRequest& request);
  std::shared_ptr<CrossDeviceOps> nccl() const;
  /// The ranks agree who carries out calls, in their first one.
  void connect(const CallRequest& request);
  void agree(int gpu, Communicator& aside);
  /// The same on all ranks.
  bool goes_by_nccl(const CallRequest& request) const;
  /// All ranks have come.
  void execute_by_nccl(const CallRequest& request, const DeviceEvent& begin);
  void execute_by_host(const CallRequest& request, const DeviceEvent& begin, TimePoint deadline);
  void copy_alone(const CallRequest& request, const DeviceEvent& begin, TimePoint deadline);
  /// What body() throws ends the calls of all ranks, which wait for this one.
  template <class Body>
  void for_all(const CallRequest& request, const Body& body);
  void wait(GpuDevice& gpu, const DeviceEvent& event, TimePoint deadline);

  CommunicatorState& state_;
  CollectiveEngine& engine_;
  std::optional<int> gpu_;  // begin() alone
  bool is_connected_ = false;
  std::atomic<bool> is_launching_{false};
  BufferRef staging_;                      // pinned
  std::shared_ptr<DeviceEvent> staged_;    // comes after the last copy to or from there
  std::optional<TimePoint> failed_since_;  // tend() alone
  bool has_failed_ = false;                // tend() alone
  mutable Mutex mutex_;
  std::shared_ptr<CrossDeviceOps> ops_ TUTTI_GUARDED_BY(mutex_);  // NCCL, or nothing
};

}  // namespace tutti::internal
