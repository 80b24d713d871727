// Interface of the simulated GPUs for tests and for the simulated CUDA libraries.
// SPDX-License-Identifier: Apache-2.0
//
// Environment, read at the first call of CUDA:
//   TUTTI_SIMULATED_GPUS="2" or "2:256"   how many, and MiB of each (default 2:512)
//   TUTTI_SIMULATED_GPU_GUARD=0           host code may touch memory of the GPUs
//   TUTTI_SIMULATED_GPU_FAULTS="kernel:5,allocation:2,peers:none"   see Faults
//   CUDA_VISIBLE_DEVICES                  as CUDA
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tutti::cuda_simulation {

/// Faults to inject. Counted from 1; 0: never.
struct Faults {
  std::int64_t kernel = 0;      // this one fails with cudaErrorIllegalAddress, which is sticky
  std::int64_t allocation = 0;  // this cudaMalloc fails with cudaErrorMemoryAllocation
  bool peers = true;            // GPUs reach each other's memory
};

struct Machine {
  int num_gpus = 2;
  std::size_t bytes = std::size_t{512} << 20;  // memory of each GPU
  bool guard = true;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  Faults faults;
};

/// Returns the machine that the environment describes. Throws kInvalidArgument naming an unreadable
/// value.
Machine machine_of_environment();
/// Starts again with another machine; streams, events and memory of the previous one are invalid.
void set_machine(const Machine& machine);
/// Replaces the faults; counting restarts.
void inject(const Faults& faults);

/// Counts since the machine was set.
struct Counts {
  std::int64_t kernels = 0;  // items of work run by enqueue()
  std::int64_t waiting = 0;  // items of work in streams that have not run
  std::int64_t live_blocks = 0;
  std::int64_t used_bytes = 0;
};
Counts counts();

/// Enqueues work of several streams, such as a collective. It runs once, after everything that
/// precedes it in each of the streams; later work there waits for it. The streams may be captured,
/// if all are in one capture.
void enqueue_joint(std::span<const cudaStream_t> streams, std::function<void()> work);

/// Work of streams that belong to several threads, each of which adds its part. It runs once all
/// parts are there, on the thread that synchronises. That thread waits for the others for up to 60
/// seconds, then its GPU fails with cudaErrorLaunchTimeout. Not for captured streams.
class JointWork;
std::shared_ptr<JointWork> make_joint_work(int num_parts, std::function<void()> work);
void enqueue_part(cudaStream_t stream, const std::shared_ptr<JointWork>& joint);
/// Cancels the work: its parts no longer wait, and it never runs. No effect once it has run.
void cancel(JointWork& joint);

/// Returns true if `data` points into a block of simulated memory (on any GPU).
bool is_device_memory(const void* data);

/// Same as enqueue(), but returns an error if the stream is broken.
cudaError_t try_enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace tutti::cuda_simulation
