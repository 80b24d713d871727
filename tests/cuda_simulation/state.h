// State of the simulated CUDA runtime: GPUs, streams with queued work, captures, errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda_simulation/simulation.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"

namespace tutti::cuda_simulation {

/// Memory of the simulated GPUs: one address range, accessible only to work in streams. Allocates
/// the blocks of each GPU by first fit. Not thread-safe.
class Arena {
 public:
  Arena(int num_gpus, std::size_t bytes_each, bool guard);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns a block aligned to 256 bytes, whose first 4 MiB are filled with 0xCD, or nullptr if no
  /// gap is large enough.
  void* allocate(int gpu, std::size_t bytes);
  enum class Freed { kYes, kNoBlock, kOverrun };
  /// Frees a block. Returns kOverrun if memory after its end was written.
  Freed release(void* data);

  /// Returns the GPU with a block that contains all of [data, data + bytes); kHost outside the
  /// arena, kNowhere if no block contains the whole range.
  static constexpr int kHost = -1, kNowhere = -2;
  int gpu_of(const void* data, std::size_t bytes = 1) const;

  std::size_t total() const { return bytes_each_; }
  std::size_t used(int gpu) const { return used_[static_cast<std::size_t>(gpu)]; }
  std::size_t num_blocks() const { return blocks_.size(); }

  /// Scope during which the arena's memory is accessible.
  class Opened {
   public:
    explicit Opened(Arena& arena) : arena_(arena) {
      if (arena_.depth_++ == 0) arena_.protect(false);
    }
    ~Opened() {
      if (--arena_.depth_ == 0) arena_.protect(true);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    Arena& arena_;
  };

 private:
  struct Block {
    std::size_t bytes = 0, span = 0;
  };
  void protect(bool closed);

  const std::size_t bytes_each_;
  const std::size_t bytes_;
  const bool guard_;
  std::byte* base_ = nullptr;
  int depth_ = 0;
  std::map<std::size_t, Block> blocks_;  // key: offset of the block
  std::vector<std::size_t> used_;
};

struct Queue;
struct Capture;

/// Point in a stream, reached once all earlier work in the stream has run.
struct Record {
  std::shared_ptr<Queue> queue;  // the record's stream; null when done
  bool done = false;
  TimePoint when;
  // Capture in which an event was recorded. A stream that waits for the event joins this capture.
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> frontier;
};

/// Work that several streams run jointly.
class JointWork {
 public:
  std::size_t num_parts = 0;
  std::function<void()> work;
  std::vector<std::shared_ptr<Record>> before;  // per part: end of the earlier work in its stream
  bool done = false;
};

/// Entry in the queue of a stream. Any of its first four members may be empty.
struct Item {
  std::function<void()> work;         // runs after `waits_for` is done and `joint` has run
  std::shared_ptr<Record> waits_for;  // record that must be done before `joint` runs
  std::shared_ptr<JointWork> joint;   // joint work that must run before `work`
  std::shared_ptr<Record> marks;      // record that is done when `work` has run
  bool is_kernel = false;
};

/// Queue of a stream. Queued work still runs after the stream is destroyed.
struct Queue {
  int gpu = 0;
  bool blocking = false;  // synchronizes with the default stream
  std::deque<Item> items;
  std::shared_ptr<Capture> capture;  // capture that contains the stream; null if there is none
  std::set<std::size_t> frontier;    // nodes that precede the next captured work
};

/// Call recorded by a capture.
struct Node {
  std::function<void()> work;
  std::set<std::size_t> after;  // indices of the earlier nodes that must run before this node
  bool is_kernel = false;
};
struct Capture {
  Queue* origin = nullptr;
  const void* thread = nullptr;  // thread that began the capture
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<Node> nodes;  // in call order
  bool valid = true;
};

struct Gpu {
  std::vector<std::shared_ptr<Queue>> queues;
  std::shared_ptr<Queue> default_queue;
  cudaError_t failure = cudaSuccess;  // sticky until set_machine()
};

/// Complete state of the simulation. Only one thread at a time may use it (see Locked).
struct World {
  explicit World(const Machine& machine);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Machine machine;
  std::vector<int> visible;  // the machine's GPUs that this process sees
  Arena arena;
  std::vector<Gpu> gpus;
  std::map<const std::byte*, std::pair<std::size_t, std::shared_ptr<void>>> pinned;
  std::vector<std::shared_ptr<Capture>> captures;  // captures in progress
  std::map<CUstream_st*, std::unique_ptr<CUstream_st>> streams;
  std::map<CUevent_st*, std::unique_ptr<CUevent_st>> events;
  std::map<CUgraph_st*, std::unique_ptr<CUgraph_st>> graphs;
  std::map<CUgraphExec_st*, std::unique_ptr<CUgraphExec_st>> executables;
  std::int64_t num_kernels = 0, num_allocations = 0;
  std::int64_t num_changes = 0;  // blocked threads wait for the next state change

  bool is_pinned(const void* data) const;
  std::shared_ptr<Queue> queue_of(cudaStream_t stream);  // null if there is none
};

/// Locks the global state during its lifetime.
class Locked {
 public:
  Locked();
  World* operator->() const { return &world_; }
  World& operator*() const { return world_; }
  static Mutex& mutex();
  static CondVar& changed();

 private:
  MutexLock lock_;
  World& world_;
};

/// State of the calling thread: its selected GPU, and its last error.
struct ThreadState {
  int gpu = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};
ThreadState& this_thread();

/// Appends an item to the stream or to its capture.
cudaError_t put(World& world, const std::shared_ptr<Queue>& queue, Item item);
/// Returns a record of all work that the stream contains now.
std::shared_ptr<Record> record(World& world, const std::shared_ptr<Queue>& queue);
/// Runs the work on which the record depends, until the record is done. Returns the failure of the
/// record's GPU, if any.
cudaError_t run_until(World& world, const std::shared_ptr<Record>& target);
/// Runs all queued work of a GPU, except in streams that are being captured.
cudaError_t run_all(World& world, int gpu);
/// Runs the work for which the stream's first item waits or, if there is no such work, this item.
/// Does nothing if another thread must first enqueue its part of the item's joint work.
void nudge(World& world, const std::shared_ptr<Queue>& queue);

/// Invalidates the captures that forbid the current call: those that this thread began in a mode
/// other than relaxed and, if this thread's mode is global, those of all threads in global mode.
/// Returns cudaErrorStreamCaptureUnsupported if there are any. Does nothing if this thread's mode
/// is relaxed.
cudaError_t refuse_while_capturing(World& world);
cudaError_t invalidate(Capture& capture, cudaError_t status);
/// Returns a function that runs the nodes of a finished capture, each as late as possible.
std::function<void()> work_of(World& world, int gpu, std::shared_ptr<const Capture> capture);

/// Wraps each function of the runtime: runs `body(World&)` with the world locked, and stores an
/// error status as the thread's last error.
template <class Body>
cudaError_t call(const Body& body) {
  const Locked world;
  const cudaError_t status = body(*world);
  if (status != cudaSuccess) this_thread().last_error = status;
  return status;
}
/// Same as call(), but returns an error without calling `body` if there is no GPU or the current
/// GPU has failed.
template <class Body>
cudaError_t call_gpu(const Body& body) {
  return call([&](World& world) {
    if (world.gpus.empty()) return cudaErrorNoDevice;
    const cudaError_t failure = world.gpus[static_cast<std::size_t>(this_thread().gpu)].failure;
    return failure != cudaSuccess ? failure : body(world);
  });
}
/// Same as call_gpu(), but first refuses the call if a capture forbids it.
template <class Body>
cudaError_t call_uncaptured(const Body& body) {
  return call_gpu([&](World& world) {
    const cudaError_t refusal = refuse_while_capturing(world);
    return refusal != cudaSuccess ? refusal : body(world);
  });
}
/// Same as call_gpu(), but runs `body(World&, queue)` with the queue of `stream`, which must exist.
template <class Body>
cudaError_t call_stream(cudaStream_t stream, const Body& body) {
  return call_gpu([&](World& world) {
    const std::shared_ptr<Queue> queue = world.queue_of(stream);
    return queue ? body(world, queue) : cudaErrorInvalidResourceHandle;
  });
}

}  // namespace tutti::cuda_simulation

// Types behind the handles of the CUDA runtime.
struct CUstream_st {
  std::shared_ptr<tutti::cuda_simulation::Queue> queue;
};
struct CUevent_st {
  int gpu = 0;
  bool timed = true;
  std::shared_ptr<tutti::cuda_simulation::Record> record;
};
struct CUgraph_st {
  std::shared_ptr<const tutti::cuda_simulation::Capture> capture;
};
struct CUgraphExec_st {
  std::shared_ptr<const tutti::cuda_simulation::Capture> capture;
};
