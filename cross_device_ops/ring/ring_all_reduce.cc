// All-reduce around a ring, in process.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: the buffer is cut into V *chunks*, chunk c being elements [c * count / V, (c + 1) *
// count / V). Replica r's *right neighbour* is r + 1 (mod V). Reduce-scatter: in *step* s = 0 ..
// V-2 replica r sends chunk r - s (mod V) to its right neighbour, which combines it with its own;
// afterwards replica r holds the whole sum of chunk r + 1 (mod V). All-gather: in V-1 further steps
// the finished chunks travel around. Cost: 2 (V-1) steps; each replica sends 2 (V-1) chunks,
// together 2 (V-1)/V x size bytes.
#include "tutti/cross_device_ops/ring/ring_all_reduce.h"

#include <cstring>

#include "tutti/cross_device_ops/local/supports.h"

namespace tutti {
namespace {

struct Chunk {
  std::size_t first;
  std::size_t count;
};

Chunk chunk_of(std::size_t chunk, std::size_t num_chunks, std::size_t count) {
  const std::size_t first = chunk * count / num_chunks;
  return {first, (chunk + 1) * count / num_chunks - first};
}

}  // namespace

bool RingAllReduce::supports(ReduceOp op, DType dtype, DeviceType device) const {
  return !is_half(dtype) && internal::host_supports(op, dtype, device);  // rounds at each hop
}

void RingAllReduce::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const std::size_t v = buffers.size();
  const DType dtype = buffers.front().dtype;
  const std::size_t element = size_of(dtype);
  const auto chunk_data = [&](std::size_t replica, const Chunk& chunk) {
    return buffers[replica].data + chunk.first * element;
  };
  for (std::size_t step = 0; step + 1 < v; ++step) {
    for (std::size_t r = 0; r < v; ++r) {
      const std::size_t right = (r + 1) % v;
      const Chunk chunk = chunk_of((r + v - step) % v, v, buffers.front().count);
      const std::byte* const inputs[] = {chunk_data(r, chunk), chunk_data(right, chunk)};
      reduce_along_tree(op, dtype, inputs, chunk_data(right, chunk), chunk.count);
    }
  }
  for (std::size_t step = 0; step + 1 < v; ++step) {
    for (std::size_t r = 0; r < v; ++r) {
      const std::size_t right = (r + 1) % v;
      const Chunk chunk = chunk_of((r + 1 + v - step) % v, v, buffers.front().count);
      std::memcpy(chunk_data(right, chunk), chunk_data(r, chunk), chunk.count * element);
    }
  }
}

}  // namespace tutti
