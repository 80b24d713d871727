// Interface of the simulated GPUs for tests and for the simulated CUDA libraries.
// SPDX-License-Identifier: Apache-2.0
//
// Environment variables, read on the first CUDA call:
//   TUTTI_SIMULATED_GPUS="2" or "2:256"   number of GPUs, and MiB of each (default 2:512)
//   TUTTI_SIMULATED_GPU_GUARD=0           host code may touch GPU memory
//   TUTTI_SIMULATED_GPU_FAULTS="kernel:5,allocation:2,peers:none"   see Faults
//   CUDA_VISIBLE_DEVICES                  as in CUDA
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tutti::cuda_simulation {

/// Faults to inject. Calls are counted from 1; 0 means no fault.
struct Faults {
  // number of the kernel launch that fails with cudaErrorIllegalAddress (sticky)
  std::int64_t kernel = 0;
  // number of the cudaMalloc() call that fails with cudaErrorMemoryAllocation
  std::int64_t allocation = 0;
  bool peers = true;  // false: GPUs cannot access each other's memory
};

struct Machine {
  int num_gpus = 2;
  std::size_t bytes = std::size_t{512} << 20;  // memory of each GPU, in bytes
  bool guard = true;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  Faults faults;
};

/// Returns the machine that environment variables describe. Throws kInvalidArgument, naming the
/// value, if one is invalid.
Machine machine_of_environment();
/// Replaces the machine. All streams, events and memory of the previous one become invalid.
void set_machine(const Machine& machine);
/// Replaces the faults, and restarts the counts of kernel launches and cudaMalloc() calls.
void inject(const Faults& faults);

/// Activity counters of the simulated machine.
struct Counts {
  // kernels and shared work that have run since the last set_machine() or inject()
  std::int64_t kernels = 0;
  std::int64_t waiting = 0;  // queued items that have not run
  std::int64_t live_blocks = 0;
  std::int64_t used_bytes = 0;
};
Counts counts();

/// Enqueues work that several streams share, such as a collective. It runs once, after all earlier
/// work in each of the streams, and later work in the streams waits for it. Streams may be captured
/// only if all of them are in one capture.
void enqueue_joint(std::span<const cudaStream_t> streams, std::function<void()> work);

/// Work shared by streams of several threads, each of which enqueues its part. Once all parts are
/// enqueued, the work runs on a thread that synchronises. If no thread enqueues or runs anything
/// for 60 seconds, the GPU of the synchronising thread's stream fails with cudaErrorLaunchTimeout.
/// Does not support captured streams.
class JointWork;
std::shared_ptr<JointWork> make_joint_work(int num_parts, std::function<void()> work);
void enqueue_part(cudaStream_t stream, const std::shared_ptr<JointWork>& joint);
/// Cancels the work: its parts no longer wait, and it never runs. Has no effect after the work has
/// run.
void cancel(JointWork& joint);

/// Returns true if `data` points into a block of simulated memory of any GPU.
bool is_device_memory(const void* data);

/// Same as enqueue() of kernel_emulation.h, but returns an error instead of throwing it.
cudaError_t try_enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace tutti::cuda_simulation
