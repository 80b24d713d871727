// Taking events from the pool, asking them, and giving them back.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/events.h"

#include <utility>

namespace tutti::cuda {

EventPool::~EventPool() {
  gpu_.use_quietly([this]() TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis) {
    for (const auto& events : idle_) {
      for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
    }
  });
}

cudaEvent_t EventPool::take(bool timed) {
  {
    MutexLock lock(mutex_);
    std::vector<cudaEvent_t>& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      const cudaEvent_t event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return event;
}

void EventPool::give_back(cudaEvent_t event, bool timed) noexcept {
  try {
    MutexLock lock(mutex_);
    idle_[timed ? 1 : 0].push_back(event);
  } catch (const std::exception&) {  // no memory for the list
    gpu_.use_quietly([event] { (void)cudaEventDestroy(event); });
  }
}

Event::Event(std::shared_ptr<EventPool> pool, bool timed)
    : pool_(std::move(pool)), timed_(timed), event_(pool_->take(timed)) {}

Event::~Event() { pool_->give_back(event_, timed_); }

void Event::record(cudaStream_t stream, bool captured) {
  captured_ = captured;
  check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

bool Event::is_done() const {
  if (captured_) return false;  // it stands for a place in a graph, which no run of it marks
  return pool_->gpu().use([this] {
    const NotCaptured not_captured;
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) check(status, "cudaEventQuery");
    if (status == cudaErrorNotReady) (void)cudaGetLastError();  // CUDA keeps it as an error
    return status == cudaSuccess;
  });
}

void Event::synchronize() const {
  pool_->gpu().use([this] {
    if (captured_) {
      fail(ErrorCode::kFailedPrecondition,
           "synchronize: nobody can wait for an event of a captured step; wait after its launch");
    }
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  });
}

double Event::milliseconds_since(const DeviceEvent& earlier) const {
  return pool_->gpu().use([&] {
    const auto& first = static_cast<const Event&>(earlier);
    if (!timed_ || !first.timed_) {
      fail(ErrorCode::kInvalidArgument,
           "milliseconds_since: an event has no time; expected two events of record_timed()");
    }
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, first.event_, event_), "cudaEventElapsedTime");
    return double{milliseconds};
  });
}

}  // namespace tutti::cuda
