// Lets a C++ compiler build CUDA kernels (.cu) for the CPU.
// SPDX-License-Identifier: Apache-2.0
// Included before everything else in each source of the simulated backend. A launch is enqueued
// in the simulated stream; when the executor runs it, its blocks run sequentially. The threads of a
// block run to their end one by one or, for launch_cooperative(), as fibers that switch at each
// barrier.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <functional>

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))

// Indices of the current thread in its block, and of the block in the grid.
inline thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline thread_local dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline constexpr int warpSize = 32;

namespace tutti::cuda_simulation {

/// Enqueues work in a stream of the simulated runtime. Throws kInternal if this call fails, or if
/// an earlier CUDA call of the thread failed and its error was not read.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Same as enqueue(), but runs `thread` once for each thread of each block.
void enqueue_alone(cudaStream_t stream, dim3 grid, dim3 block, std::function<void()> thread);
void enqueue_cooperatively(cudaStream_t stream, dim3 grid, dim3 block,
                           std::function<void()> thread);

/// Waits for all threads of the block (or of the warp) that have not ended.
void block_barrier();
void warp_barrier();
/// Returns the 8 bytes through which lane `lane` shares values with the other lanes of this
/// thread's warp.
std::uint64_t& warp_slot(int lane);
int lane_of_this_thread();

template <class T>
T shuffle(T value, int from_lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::memcpy(&warp_slot(lane_of_this_thread()), &value, sizeof(T));
  warp_barrier();
  T result;
  std::memcpy(&result, &warp_slot(from_lane & 31), sizeof(T));
  warp_barrier();
  return result;
}

}  // namespace tutti::cuda_simulation

inline void __syncthreads() { tutti::cuda_simulation::block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { tutti::cuda_simulation::warp_barrier(); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int lane_mask, int = 32) {
  return tutti::cuda_simulation::shuffle(value,
                                         tutti::cuda_simulation::lane_of_this_thread() ^ lane_mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int = 32) {
  const int lane = tutti::cuda_simulation::lane_of_this_thread();
  const int from = lane + static_cast<int>(delta);
  return tutti::cuda_simulation::shuffle(value, from < 32 ? from : lane);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
  return tutti::cuda_simulation::shuffle(value, lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  using namespace tutti::cuda_simulation;
  warp_slot(lane_of_this_thread()) = predicate != 0 ? 1 : 0;
  warp_barrier();
  unsigned ballot = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    ballot |= static_cast<unsigned>(warp_slot(lane)) << lane;
  }
  warp_barrier();
  return ballot;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  if (value > old) *address = value;
  return old;
}

namespace tutti::cuda {

// Instantiates as little code as possible (only this closure) for each kernel signature, because
// the backend has a thousand kernels.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            const Arguments&... arguments) {
  cuda_simulation::enqueue_alone(
      stream, grid, block,
      [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); });
}

template <class... Parameters, class... Arguments>
void launch_cooperative(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                        const Arguments&... arguments) {
  cuda_simulation::enqueue_cooperatively(
      stream, grid, block,
      [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); });
}

}  // namespace tutti::cuda
