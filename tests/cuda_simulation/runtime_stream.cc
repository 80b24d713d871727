// Streams, events, stream capture and graphs in the simulated CUDA runtime.
// SPDX-License-Identifier: Apache-2.0

#include "tests/cuda_simulation/state.h"

namespace tutti::cuda_simulation {
namespace {

/// Returns an address that identifies the calling thread; captures record it.
const void* thread_identity() { return &this_thread(); }

/// Returns the nodes in `last` and all nodes that precede them.
std::set<std::size_t> all_before(const Capture& capture, const std::set<std::size_t>& last) {
  std::set<std::size_t> found = last;
  for (std::size_t i = capture.nodes.size(); i-- > 0;) {
    if (found.count(i)) found.insert(capture.nodes[i].after.begin(), capture.nodes[i].after.end());
  }
  return found;
}

void leave(World& world, const std::shared_ptr<Capture>& capture) {
  for (Gpu& gpu : world.gpus) {
    for (const auto& queue : gpu.queues) {
      if (queue->capture != capture) continue;
      queue->capture.reset();
      queue->frontier.clear();
    }
  }
  std::erase(world.captures, capture);
}

cudaError_t end_capture(World& world, const std::shared_ptr<Queue>& queue, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = queue->capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != thread_identity()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture->origin != queue.get()) return cudaErrorStreamCaptureUnmatched;
  const std::set<std::size_t> joined = all_before(*capture, queue->frontier);
  leave(world, capture);
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (joined.size() != capture->nodes.size()) return cudaErrorStreamCaptureUnjoined;
  auto owned = std::make_unique<CUgraph_st>();
  owned->capture = capture;
  *graph = owned.get();
  world.graphs[*graph] = std::move(owned);
  return cudaSuccess;
}

}  // namespace

cudaError_t invalidate(Capture& capture, cudaError_t status) {
  capture.valid = false;
  return status;
}

cudaError_t refuse_while_capturing(World& world) {
  const cudaStreamCaptureMode mode = this_thread().capture_mode;
  cudaError_t status = cudaSuccess;
  for (const auto& capture : world.captures) {
    if (mode == cudaStreamCaptureModeRelaxed) break;
    const bool own =
        capture->thread == thread_identity() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool everybody =
        mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (own || everybody) status = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return status;
}

}  // namespace tutti::cuda_simulation

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols

namespace {

CUevent_st* find_event(World& world, cudaEvent_t event) {
  const auto found = world.events.find(event);
  return found == world.events.end() ? nullptr : found->second.get();
}

/// Invalidates the stream's capture, if any, because no call can wait for a stream that is being
/// captured.
cudaError_t refuse_if_captured(const Queue& queue) {
  return queue.capture ? invalidate(*queue.capture, cudaErrorStreamCaptureUnsupported)
                       : cudaSuccess;
}

/// Adds `queue` to a capture, because the queue waits for an event that was recorded in the
/// capture.
cudaError_t join_capture(Queue& queue, const Record& record) {
  if (!record.capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (queue.capture && queue.capture != record.capture) {
    invalidate(*queue.capture, cudaSuccess);
    return invalidate(*record.capture, cudaErrorStreamCaptureMerge);
  }
  queue.capture = record.capture;
  queue.frontier.insert(record.frontier.begin(), record.frontier.end());
  return cudaSuccess;
}

/// Runs `body(world, record, GPU)` for an event that was recorded outside captures.
template <class Body>
cudaError_t call_recorded(cudaEvent_t event, const Body& body) {
  return call_gpu([&](World& world) {
    const CUevent_st* const found = find_event(world, event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (!found->record) return cudaSuccess;
    if (found->record->capture) return invalidate(*found->record->capture, cudaErrorCapturedEvent);
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    return body(world, found->record, world.gpus[static_cast<std::size_t>(found->gpu)]);
  });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return call_gpu([&](World& world) {
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto owned = std::make_unique<CUstream_st>();
    owned->queue = std::make_shared<Queue>();
    owned->queue->gpu = this_thread().gpu;
    owned->queue->blocking = flags == cudaStreamDefault;
    world.gpus[static_cast<std::size_t>(this_thread().gpu)].queues.push_back(owned->queue);
    *stream = owned.get();
    world.streams[*stream] = std::move(owned);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](World& world) {
    const auto found = world.streams.find(stream);
    if (found == world.streams.end()) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Queue> queue = found->second->queue;
    if (queue->capture) invalidate(*queue->capture, cudaSuccess);
    world.streams.erase(found);
    // Work that remains in the stream runs later: when it is needed, or when the GPU is
    // synchronized.
    if (queue->items.empty())
      std::erase(world.gpus[static_cast<std::size_t>(queue->gpu)].queues, queue);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    if (const cudaError_t status = refuse_if_captured(*queue); status != cudaSuccess) return status;
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    return run_until(world, record(world, queue));
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    const CUevent_st* const found = find_event(world, event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (!found->record) return cudaSuccess;  // the event was never recorded
    if (found->record->capture) return join_capture(*queue, *found->record);
    if (queue->capture) return invalidate(*queue->capture, cudaErrorStreamCaptureIsolation);
    if (found->record->done) return cudaSuccess;
    Item item;
    item.waits_for = found->record;
    return put(world, queue, std::move(item));
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call_gpu([&](World& world) {
    auto owned = std::make_unique<CUevent_st>();
    owned->gpu = this_thread().gpu;
    owned->timed = (flags & cudaEventDisableTiming) == 0;
    *event = owned.get();
    world.events[*event] = std::move(owned);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&](World& world) {
    return world.events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    CUevent_st* const found = find_event(world, event);
    if (!found || found->gpu != queue->gpu) return cudaErrorInvalidResourceHandle;
    if (queue->capture && !queue->capture->valid) return cudaErrorStreamCaptureInvalidated;
    found->record = record(world, queue);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call_recorded(event, [&](World& world, std::shared_ptr<Record> record, const Gpu& gpu) {
    if (!record->done) nudge(world, std::shared_ptr<Queue>(record->queue));
    return record->done ? gpu.failure : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call_recorded(event, [&](World& world, std::shared_ptr<Record> record, const Gpu& gpu) {
    return record->done ? gpu.failure : run_until(world, record);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call_gpu([&](World& world) {
    const CUevent_st* const first = find_event(world, start);
    const CUevent_st* const last = find_event(world, end);
    if (!first || !last || !first->timed || !last->timed || !first->record || !last->record) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!first->record->done || !last->record->done) return cudaErrorNotReady;
    *milliseconds =
        static_cast<float>(1e3 * tutti::seconds_between(first->record->when, last->record->when));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call_uncaptured([&](World& world) { return run_all(world, this_thread().gpu); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    if (!stream) return cudaErrorStreamCaptureImplicit;  // the default stream cannot be captured
    if (queue->capture) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->origin = queue.get();
    capture->thread = thread_identity();
    capture->mode = mode;
    queue->capture = capture;
    queue->frontier.clear();
    world.captures.push_back(std::move(capture));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    return end_capture(world, queue, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call_stream(stream, [&](World&, const std::shared_ptr<Queue>& queue) {
    *status = !queue->capture         ? cudaStreamCaptureStatusNone
              : queue->capture->valid ? cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, this_thread().capture_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return call_gpu([&](World& world) {
    const auto found = world.graphs.find(graph);
    if (found == world.graphs.end()) return cudaErrorInvalidValue;
    auto owned = std::make_unique<CUgraphExec_st>();
    owned->capture = found->second->capture;
    *executable = owned.get();
    world.executables[*executable] = std::move(owned);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return call_gpu([&](World& world) {
    if (!world.queue_of(stream)) return cudaErrorInvalidResourceHandle;
    return world.executables.count(executable) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    const auto found = world.executables.find(executable);
    if (found == world.executables.end()) return cudaErrorInvalidValue;
    Item item;
    item.work = work_of(world, queue->gpu, found->second->capture);
    return put(world, queue, std::move(item));
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](World& world) {
    return world.graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call([&](World& world) {
    return world.executables.erase(executable) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

}  // extern "C"
