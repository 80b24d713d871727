// Capture of a step on the GPUs of all replicas as one graph, which is launched repeatedly.
// SPDX-License-Identifier: Apache-2.0
// The first replica's compute stream is the origin of the capture. The streams of the other
// replicas join by waiting for an event of the origin; at the end, the origin waits for these
// streams. Dependencies between replicas (a reduction, say) thus become edges of one graph, and one
// launch starts the work of all replicas.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tensor/buffer_allocator.h"
#include "tensor/step_hooks.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/variable_memory.h"

namespace tutti {

/// Memory of a captured graph. Launches reuse the addresses of the capture, so the capture
/// allocates device memory from this object and returns freed memory to it. Later operations of the
/// capture may reuse that memory; other work may not. Owned by the graph; memory that tensors still
/// hold outlives it. Thread-safe for threads that take part in the capture.
class GraphMemory {
 public:
  explicit GraphMemory(Device device);
  ~GraphMemory();
  GraphMemory& operator=(GraphMemory&&) = delete;

  Device device() const { return device_; }
  AllocatorStatistics statistics() const { return pool_->statistics(); }

  /// Returns the memory of `device` in this thread's GraphMemoryScope; nullptr outside such a
  /// scope.
  static GraphMemory* current(Device device);

  BufferAllocator& allocator() { return *pool_; }
  /// Keeps alive a buffer that was freed during a capture, because the captured work may use it.
  void keep(BufferRef buffer);
  /// Returns a copy of `bytes` bytes in pinned memory, for copies that each launch repeats.
  const void* keep_pinned(const void* from, std::size_t bytes);

 private:
  struct Pinned;
  const Device device_;
  std::shared_ptr<BufferAllocator> pool_;
  Mutex mutex_;
  std::vector<BufferRef> kept_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pinned>> pinned_ TUTTI_GUARDED_BY(mutex_);
};

/// Scope in which this thread allocates each device's tensors from that device's entry in
/// `memories`, which has one entry per device.
class GraphMemoryScope {
 public:
  using Memories = std::vector<std::unique_ptr<GraphMemory>>;
  explicit GraphMemoryScope(const Memories& memories);
  ~GraphMemoryScope();
  GraphMemoryScope& operator=(GraphMemoryScope&&) = delete;

 private:
  const Memories* previous_;
};

}  // namespace tutti

namespace tutti::internal {

/// Recorder of the variables that a step uses, in the run before its capture. Thread-safe.
class UsedVariables final : public StepRecorder {
 public:
  std::vector<std::shared_ptr<VariableMemory>> list() const;

  const void* reserve(Device, std::size_t, std::function<void(std::byte*)>,
                      const Identity&) override {
    return nullptr;
  }
  void on_replay(std::function<void()>, std::function<void()>) override {}
  void uses(const std::shared_ptr<VariableMemory>& memory) override;
  void follows_step(const RandomKey&) override {}
  bool is_of_step(const RandomKey&) const override { return false; }

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<VariableMemory>> list_ TUTTI_GUARDED_BY(mutex_);
};

/// Captured step. The constructor begins the capture, end() completes it, and the step can then be
/// launched. The scopes of all replicas may be alive at the same time; all other calls must be made
/// by one thread while no replica runs. Destruction before end() discards the capture.
class StepCapture {
 public:
  /// `devices`: one for each replica, in replica order; a GPU may serve several replicas.
  /// `variables`: all that the step uses; they are pinned for the lifetime of this object. Throws
  /// kUnimplemented, naming the device, if a device is not a GPU.
  StepCapture(std::span<const Device> devices,
              std::vector<std::shared_ptr<VariableMemory>> variables);
  ~StepCapture();
  StepCapture& operator=(StepCapture&&) = delete;

  /// Scope in which the actions of this thread are recorded as those of replica `replica`.
  class ReplicaScope {
   public:
    ReplicaScope(StepCapture& capture, int replica);

   private:
    StepRecorderScope recording_;
    GraphMemoryScope memory_;
  };

  /// Ends the capture. The captured work has not run yet: launch() runs it, for the captured step
  /// and for all later steps. Throws kFailedPrecondition if the work cannot be captured.
  void end();

  /// Runs the `prepare` effects of all replicas, before a replay is launched.
  void prepare();
  /// Writes this step's values and launches the step. The values depend on the seed and step of
  /// `context` and on each replica's number.
  void launch(const RandomContext& context);
  void commit();
  /// Returns true if the step draws random numbers. Otherwise, its results do not depend on the
  /// context.
  bool draws() const;

 private:
  class Recorder;
  struct Graph;
  std::vector<std::shared_ptr<VariableMemory>> variables_;
  std::vector<std::unique_ptr<Recorder>> recorders_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace tutti::internal
