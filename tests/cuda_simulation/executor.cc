// Runs the work in streams as late as the order imposed by streams and events allows.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <exception>

#include "tests/cuda_simulation/kernel_emulation.h"
#include "tests/cuda_simulation/state.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

constexpr std::chrono::seconds kPatience{60};
// maximum depth of nested waits; deeper waits must form a cycle
constexpr std::size_t kMaxDepth = 1'000'000;

void break_gpu(World& world, int gpu, cudaError_t failure, const char* what) {
  std::fprintf(stderr, "simulated GPU %d: %s\n", gpu, what);
  cudaError_t& kept = world.gpus[static_cast<std::size_t>(gpu)].failure;
  if (kept == cudaSuccess) kept = failure;
}

void run_work(World& world, int gpu, const std::function<void()>& work, bool is_kernel) {
  if (world.gpus[static_cast<std::size_t>(gpu)].failure != cudaSuccess) return;
  if (is_kernel && ++world.num_kernels == world.machine.faults.kernel) {
    break_gpu(world, gpu, cudaErrorIllegalAddress, "this kernel fails because of Faults::kernel");
    return;
  }
  const Arena::Opened opened(world.arena);
  try {
    work();
  } catch (const std::exception& error) {
    break_gpu(world, gpu, cudaErrorLaunchFailure, error.what());
  }
}

void mark(const std::shared_ptr<Record>& record) {
  if (!record) return;
  record->done = true;
  record->when = Clock::system().now();
  record->queue.reset();
}

/// Returns a record that must finish before the front item of the queue can run; null if there is
/// none. Sets `blocked` if another thread must first enqueue its part of joint work.
std::shared_ptr<Record> obstacle(const Queue& queue, bool& blocked) {
  const Item& item = queue.items.front();
  if (item.waits_for && !item.waits_for->done) return item.waits_for;
  if (!item.joint || item.joint->done) return nullptr;
  for (const auto& before : item.joint->before) {
    if (!before->done) return before;
  }
  blocked = item.joint->before.size() < item.joint->num_parts;
  return nullptr;
}

void run_front(World& world, Queue& queue) {
  const Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (item.joint && !item.joint->done) {
    item.joint->done = true;
    run_work(world, queue.gpu, item.joint->work, true);
  }
  if (item.work) run_work(world, queue.gpu, item.work, item.is_kernel);
  mark(item.marks);
  ++world.num_changes;
}

/// Runs work until the record is done. Returns false if another thread must first enqueue its part
/// of joint work.
bool advance(World& world, const std::shared_ptr<Record>& target) {
  const Arena::Opened opened(world.arena);
  std::vector<std::shared_ptr<Record>> needed{target};
  while (!needed.empty()) {
    const std::shared_ptr<Record> next = needed.back();
    if (next->done) {
      needed.pop_back();
      continue;
    }
    TUTTI_CHECK(needed.size() < kMaxDepth, "simulated GPUs: streams wait for each other");
    bool blocked = false;
    const std::shared_ptr<Queue> queue = next->queue;
    if (auto first = obstacle(*queue, blocked)) {
      needed.push_back(std::move(first));
    } else if (blocked) {
      return false;
    } else {
      run_front(world, *queue);
    }
  }
  return true;
}

/// Waits until another thread changes the state. Returns false after kPatience without a change.
TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis)
bool wait_for_others(World& world) {
  const std::int64_t before = world.num_changes;
  return Locked::changed().wait_for(Locked::mutex(), kPatience,
                                    [&] { return world.num_changes != before; });
}

void notify(World& world) {
  ++world.num_changes;
  Locked::changed().notify_all();
}

/// Makes `queue` wait for the work that `other` contains now.
void wait_for(World& world, Queue& queue, const std::shared_ptr<Queue>& other) {
  if (other->items.empty()) return;
  Item item;
  item.waits_for = record(world, other);
  queue.items.push_back(std::move(item));
}

/// Makes a blocking stream wait for the default stream, or makes the default stream wait for all
/// blocking streams. Fails if the default stream would wait for a stream that is being captured.
cudaError_t order_by_default_stream(World& world, const std::shared_ptr<Queue>& queue) {
  const Gpu& gpu = world.gpus[static_cast<std::size_t>(queue->gpu)];
  if (queue->blocking) wait_for(world, *queue, gpu.default_queue);
  if (queue != gpu.default_queue) return cudaSuccess;
  for (const auto& other : gpu.queues) {
    if (!other->blocking) continue;
    if (other->capture) return invalidate(*other->capture, cudaErrorStreamCaptureImplicit);
    wait_for(world, *queue, other);
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t put(World& world, const std::shared_ptr<Queue>& queue, Item item) {
  if (queue->capture) {
    Capture& capture = *queue->capture;
    if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
    if (item.joint) return invalidate(capture, cudaErrorStreamCaptureUnsupported);
    capture.nodes.push_back({std::move(item.work), queue->frontier, item.is_kernel});
    queue->frontier = {capture.nodes.size() - 1};
    return cudaSuccess;
  }
  if (!item.marks) {
    if (const cudaError_t status = order_by_default_stream(world, queue); status != cudaSuccess) {
      return status;
    }
  }
  queue->items.push_back(std::move(item));
  notify(world);
  return cudaSuccess;
}

std::shared_ptr<Record> record(World& world, const std::shared_ptr<Queue>& queue) {
  auto record = std::make_shared<Record>();
  if (queue->capture) {
    record->capture = queue->capture;
    record->frontier = queue->frontier;
    return record;
  }
  if (queue->items.empty()) {
    mark(record);
    return record;
  }
  record->queue = queue;
  Item item;
  item.marks = record;
  put(world, queue, std::move(item));
  return record;
}

cudaError_t run_until(World& world, const std::shared_ptr<Record>& target) {
  // While this thread waits, other threads may run these streams. Therefore, advance() reads their
  // state again.
  const std::shared_ptr<Queue> queue = target->queue;
  if (!queue) return cudaSuccess;
  const int gpu = queue->gpu;
  while (!advance(world, target)) {
    if (wait_for_others(world)) continue;
    break_gpu(world, gpu, cudaErrorLaunchTimeout,
              "timed out waiting for other streams to enqueue joint work");
    break;
  }
  Locked::changed().notify_all();
  return world.gpus[static_cast<std::size_t>(gpu)].failure;
}

cudaError_t run_all(World& world, int gpu) {
  Gpu& state = world.gpus[static_cast<std::size_t>(gpu)];
  const std::vector<std::shared_ptr<Queue>> queues = state.queues;
  for (const auto& queue : queues) {
    if (!queue->capture) run_until(world, record(world, queue));
  }
  return state.failure;
}

void nudge(World& world, const std::shared_ptr<Queue>& queue) {
  if (queue->items.empty()) return;
  bool blocked = false;
  if (const auto first = obstacle(*queue, blocked)) {
    advance(world, first);
  } else if (!blocked) {
    const Arena::Opened opened(world.arena);
    run_front(world, *queue);
  }
  Locked::changed().notify_all();
}

std::function<void()> work_of(World& world, int gpu, std::shared_ptr<const Capture> capture) {
  return [&world, gpu, capture = std::move(capture)] {
    // The latest node that is ready runs first, so that a missing edge changes results.
    const std::vector<Node>& nodes = capture->nodes;
    std::vector<std::size_t> num_missing(nodes.size());
    std::vector<std::vector<std::size_t>> next(nodes.size());
    std::set<std::size_t> ready;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      num_missing[i] = nodes[i].after.size();
      if (num_missing[i] == 0) ready.insert(i);
      for (const std::size_t before : nodes[i].after) next[before].push_back(i);
    }
    while (!ready.empty()) {
      const std::size_t node = *ready.rbegin();
      ready.erase(node);
      if (nodes[node].work) run_work(world, gpu, nodes[node].work, nodes[node].is_kernel);
      for (const std::size_t after : next[node]) {
        if (--num_missing[after] == 0) ready.insert(after);
      }
    }
  };
}

cudaError_t try_enqueue(cudaStream_t stream, std::function<void()> work) {
  return call_gpu([&](World& world) {
    const std::shared_ptr<Queue> queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    Item item;
    item.work = std::move(work);
    item.is_kernel = true;
    return put(world, queue, std::move(item));
  });
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  try_enqueue(stream, std::move(work));
  // Like the real launch(), this function also reports the error of an earlier call.
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  fail(ErrorCode::kInternal, "kernel launch: CUDA reports ", cudaGetErrorName(status), ": ",
       cudaGetErrorString(status));
}

std::shared_ptr<JointWork> make_joint_work(int num_parts, std::function<void()> work) {
  auto joint = std::make_shared<JointWork>();
  joint->num_parts = static_cast<std::size_t>(num_parts);
  joint->work = std::move(work);
  return joint;
}

void enqueue_part(cudaStream_t stream, const std::shared_ptr<JointWork>& joint) {
  call_gpu([&](World& world) {
    const std::shared_ptr<Queue> queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    if (queue->capture) return invalidate(*queue->capture, cudaErrorStreamCaptureUnsupported);
    joint->before.push_back(record(world, queue));
    Item item;
    item.joint = joint;
    return put(world, queue, std::move(item));
  });
}

void cancel(JointWork& joint) {
  const Locked world;
  joint.done = true;
  notify(*world);
}

void enqueue_joint(std::span<const cudaStream_t> streams, std::function<void()> work) {
  call_gpu([&](World& world) {
    std::vector<std::shared_ptr<Queue>> queues;
    std::set<std::size_t> frontier;
    for (const cudaStream_t stream : streams) {
      queues.push_back(world.queue_of(stream));
      if (!queues.back()) return cudaErrorInvalidResourceHandle;
      if (queues.back()->capture != queues.front()->capture) return cudaErrorStreamCaptureMerge;
      frontier.insert(queues.back()->frontier.begin(), queues.back()->frontier.end());
    }
    if (const auto capture = queues.front()->capture) {
      if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
      capture->nodes.push_back({work, frontier, true});
      for (const auto& queue : queues) queue->frontier = {capture->nodes.size() - 1};
      return cudaSuccess;
    }
    const auto joint = make_joint_work(static_cast<int>(queues.size()), work);
    for (const auto& queue : queues) {
      joint->before.push_back(record(world, queue));
      Item item;
      item.joint = joint;
      put(world, queue, std::move(item));
    }
    return cudaSuccess;
  });
}

}  // namespace tutti::cuda_simulation
