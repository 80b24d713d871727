// Stream capture and graphs of the simulated CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/cuda_simulation/state.h"

namespace tutti::cuda_simulation {
namespace {

/// A thread's identity, as captures note it.
const void* thread_identity() { return &this_thread(); }

/// Nodes that come before `last`, and those.
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

using tutti::cuda_simulation::call;
using tutti::cuda_simulation::call_gpu;
using tutti::cuda_simulation::Capture;
using tutti::cuda_simulation::World;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call_gpu([&](World& world) {
    if (!stream) return cudaErrorStreamCaptureImplicit;  // the default stream cannot be captured
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    if (queue->capture) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->origin = queue.get();
    capture->thread = tutti::cuda_simulation::thread_identity();
    capture->mode = mode;
    queue->capture = capture;
    queue->frontier.clear();
    world.captures.push_back(std::move(capture));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    return tutti::cuda_simulation::end_capture(world, queue, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    *status = !queue->capture         ? cudaStreamCaptureStatusNone
              : queue->capture->valid ? cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, tutti::cuda_simulation::this_thread().capture_mode);
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

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return call_gpu([&](World& world) {
    const auto found = world.graphs.find(graph);
    if (found == world.graphs.end() || nodes) return cudaErrorInvalidValue;
    *count = found->second->capture->nodes.size();
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
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    const auto found = world.executables.find(executable);
    if (!queue) return cudaErrorInvalidResourceHandle;
    if (found == world.executables.end()) return cudaErrorInvalidValue;
    tutti::cuda_simulation::Item item;
    item.work = tutti::cuda_simulation::work_of(world, queue->gpu, found->second->capture);
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
