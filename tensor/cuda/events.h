// Events of one GPU, used again and again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "tensor/cuda/gpu.h"
#include "tensor/device_backend.h"
#include "tutti/core/sync.h"

namespace tutti::cuda {

/// Making an event takes longer than recording it, so those that nobody holds are kept. Any thread.
class EventPool {
 public:
  explicit EventPool(const Gpu& gpu) : gpu_(gpu) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  const Gpu& gpu() const { return gpu_; }
  /// Timed events are slower to record and to wait for. The GPU must be selected.
  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed) noexcept;

 private:
  const Gpu gpu_;
  Mutex mutex_;
  std::array<std::vector<cudaEvent_t>, 2> idle_ TUTTI_GUARDED_BY(mutex_);  // untimed, timed
};

/// Gives its event back to the pool.
class Event final : public DeviceEvent {
 public:
  Event(std::shared_ptr<EventPool> pool, bool timed);
  ~Event() override;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  /// The GPU must be selected. `captured`: the stream notes its work instead of running it.
  void record(cudaStream_t stream, bool captured);

  bool is_done() const override;
  void synchronize() const override;
  double milliseconds_since(const DeviceEvent& earlier) const override;

 private:
  const std::shared_ptr<EventPool> pool_;
  const bool timed_;
  bool captured_ = false;
  cudaEvent_t event_ = nullptr;
};

}  // namespace tutti::cuda
