// The simulated GPUs, as tests and the stand-ins of CUDA's libraries use them.
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

/// What shall go wrong. Counted from 1; 0: never.
struct Faults {
  std::int64_t kernel = 0;      // this one fails with cudaErrorIllegalAddress, which stays
  std::int64_t allocation = 0;  // this cudaMalloc fails with cudaErrorMemoryAllocation
  bool peers = true;            // GPUs reach each other's memory
};

struct Machine {
  int num_gpus = 2;
  std::size_t bytes = std::size_t{512} << 20;  // memory of each
  bool guard = true;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  Faults faults;
};

/// What the environment says. Throws kInvalidArgument naming what cannot be read.
Machine machine_of_environment();
/// Starts again with another machine: no stream, event or memory of the one before may be used.
void set_machine(const Machine& machine);
/// Replaces the faults; counting starts again.
void inject(const Faults& faults);

/// What happened since the machine was set.
struct Counts {
  std::int64_t kernels = 0;  // pieces of work that ran, by enqueue()
  std::int64_t waiting = 0;  // pieces of work in streams that have not run
  std::int64_t live_blocks = 0;
  std::int64_t used_bytes = 0;
};
Counts counts();

/// Work of several streams at once, such as a collective: runs once, after everything that stands
/// before it in each of the streams; what comes after it there waits for it. The streams may be
/// captured, then all by one capture.
void enqueue_joint(std::span<const cudaStream_t> streams, std::function<void()> work);

/// The same when the streams belong to several threads, each of which puts its part: `work` runs
/// once all parts are there, on the thread that synchronises, which waits for the others (60
/// seconds, then its GPU fails with cudaErrorLaunchTimeout). Not for captured streams.
class JointWork;
std::shared_ptr<JointWork> make_joint_work(int num_parts, std::function<void()> work);
void enqueue_part(cudaStream_t stream, const std::shared_ptr<JointWork>& joint);
/// Its parts no longer wait, and its work never runs. No effect once it has run.
void cancel(JointWork& joint);

/// Whether `data` points into a block of simulated memory (any GPU).
bool is_device_memory(const void* data);

/// Status of work put into a stream by enqueue(): those of launches whose stream is broken.
cudaError_t try_enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace tutti::cuda_simulation
