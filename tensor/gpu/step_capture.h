// Work of one step on the GPUs of all replicas, captured as one graph and launched again and again.
// SPDX-License-Identifier: Apache-2.0
//
// The first replica's compute stream is the origin of the capture; the other replicas' streams take
// part by waiting for an event of it and are waited for at the end. So dependencies between
// replicas (a reduction, say) become edges of the one graph, and one launch starts them all.
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

/// The memory of a captured graph. Each launch of a captured graph reads and writes the addresses
/// of its capture. So what is allocated on the device while the work is captured comes from here
/// and returns here: the next operation of the capture may have it, no other work. Owned by the
/// graph; memory that tensors still hold outlives it. Any thread that takes part in the capture.
class GraphMemory {
 public:
  explicit GraphMemory(Device device);
  ~GraphMemory();
  GraphMemory& operator=(GraphMemory&&) = delete;

  Device device() const { return device_; }
  AllocatorStatistics statistics() const { return pool_->statistics(); }

  /// That of `device` in this thread's scope; nullptr when there is none.
  static GraphMemory* current(Device device);

  BufferAllocator& allocator() { return *pool_; }
  /// A buffer that was freed while work was captured which may use it.
  void keep(BufferRef buffer);
  /// A copy of `bytes` bytes in pinned memory, for copies that each launch repeats.
  const void* keep_pinned(const void* from, std::size_t bytes);

 private:
  struct Pinned;
  const Device device_;
  std::shared_ptr<BufferAllocator> pool_;
  Mutex mutex_;
  std::vector<BufferRef> kept_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pinned>> pinned_ TUTTI_GUARDED_BY(mutex_);
};

/// While it lives, this thread's tensors on the devices of `memories` (one each) are made of them.
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

/// Notes which variables a step uses, in the run before its capture. Any thread.
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

/// Made when the capture begins; launched after end(). The replicas' scopes may live at
/// once; everything else is for one thread while no replica runs. Destroyed before end():
/// the capture is discarded.
class StepCapture {
 public:
  /// `devices`: of the replicas, in replica order; a GPU may serve several. `variables`: all that
  /// the step uses; they are pinned as long as this lives. Throws kUnimplemented naming a device
  /// that is no GPU.
  StepCapture(std::span<const Device> devices,
              std::vector<std::shared_ptr<VariableMemory>> variables);
  ~StepCapture();
  StepCapture& operator=(StepCapture&&) = delete;

  /// While it lives, what this thread does is noted as replica `replica`'s part of the step.
  class ReplicaScope {
   public:
    ReplicaScope(StepCapture& capture, int replica);

   private:
    StepRecorderScope recording_;
    GraphMemoryScope memory_;
  };

  /// Ends the capture. The work was not done yet: launch() does it, for the step that was captured
  /// like for all later ones. Throws kFailedPrecondition when the work cannot be captured.
  void end();

  /// What comes before the launch of a replay: host effects, once for all replicas.
  void prepare();
  /// Writes the values of this step (context: seed and step; each replica its number) and launches.
  void launch(const RandomContext& context);
  void commit();
  /// Returns true if the step draws random numbers, so that the context matters.
  bool draws() const;

 private:
  class Recorder;
  struct Graph;
  std::vector<std::shared_ptr<VariableMemory>> variables_;
  std::vector<std::unique_ptr<Recorder>> recorders_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace tutti::internal
