// One collective call: what every rank of a group does at the same place of the program, and the
// memory that it is done to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/source_location.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/shape.h"

namespace tutti {

namespace internal {
class DeviceWork;
}  // namespace internal

/// MPI's words.
enum class Collective : std::uint8_t {
  kAllReduce = 0,
  kReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kAllToAll = 5,
  kBarrier = 6,
};
std::string_view to_string(Collective collective);  // "all_reduce", ...
/// Whether it combines values (and a reduction counts), and whether it has a root.
bool combines(Collective collective);
bool has_root(Collective collective);

/// Elements in memory that somebody else owns. Aligned to the element or not.
struct ConstElements {
  const std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;

  ConstElements() = default;
  ConstElements(const std::byte* first, std::size_t length, DType type)
      : data(first), count(length), dtype(type) {}
  template <class T>
  ConstElements(std::span<const T> values)
      : data(reinterpret_cast<const std::byte*>(values.data())),
        count(values.size()),
        dtype(dtype_of<T>()) {}
  template <class T>
  ConstElements(std::span<T> values) : ConstElements(std::span<const T>(values)) {}
  std::size_t num_bytes() const { return count * size_of(dtype); }
};

/// The same, to be written. Not owned: they must outlive the call, of a started one its handle.
struct Elements {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;

  Elements() = default;
  Elements(std::byte* first, std::size_t length, DType type)
      : data(first), count(length), dtype(type) {}
  template <class T>
  requires(!std::is_const_v<T>) Elements(std::span<T> values)
      : data(reinterpret_cast<std::byte*>(values.data())),
        count(values.size()),
        dtype(dtype_of<T>()) {}
  operator ConstElements() const { return {data, count, dtype}; }
  std::size_t num_bytes() const { return count * size_of(dtype); }
};

/// One contiguous buffer of a replica. Does not own its memory. As an input it is not written to.
struct ReplicaBuffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;
  /// For a GPU's buffer, as an operation gets it: the streams that its work goes into.
  internal::DeviceWork* work = nullptr;
  /// Key and name for state that an operation keeps between calls, such as what rounding lost: the
  /// same for a buffer in every call (a bucket of gradients in every step), different for others. 0
  /// where calls are not known to repeat. The name is valid until the call returns. An operation
  /// with state is not sliceable().
  std::uint64_t id = 0;
  std::string_view name = {};
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data), count};
  }
  std::size_t num_bytes() const { return count * size_of(dtype); }
};

/// What an operation promises about its sums. kCanonical: the bits of the tree of
/// docs/determinism.md. kRunToRun: the same bits in each run. kNone: nothing.
enum class Determinism { kNone, kRunToRun, kCanonical };
/// Its name for logs and reports.
std::string_view to_string(Determinism determinism);

/// Where a call's buffers are that are memory of a GPU, and its place among the GPU's work.
struct GpuStream {
  /// n of gpu:n, which is CUDA's device n as long as GPUs are not split (set_virtual_gpus()).
  int gpu = 0;
  /// A cudaStream_t of that GPU; nullptr: CUDA's default stream. The call begins after what the
  /// stream holds when it is made, and what the stream gets later sees the result.
  void* stream = nullptr;
};

/// What a caller may say about a call. Name and shape are compared between the ranks.
struct CallOptions {
  std::string_view name = {};  // up to 47 characters count; valid until the call has ended
  const Shape* shape = nullptr;
  /// ReplicaBuffer::id of this rank's buffer; 0: calls of one name are calls of one buffer.
  std::uint64_t id = 0;
  std::optional<Duration> timeout = std::nullopt;  // nothing: the communicator's, as in plugins
  /// kBFloat16 or kFloat16: SUM and MEAN of float32 in all_reduce travel in these, are added as
  /// floats, and the result is rounded to them once. Half the bytes between processes. Algorithms
  /// that combine in several steps refuse (kUnimplemented). Compared between the ranks.
  std::optional<DType> compression = std::nullopt;
  /// All buffers of the call are memory of this GPU, of any allocator of CUDA. On one rank, on all:
  /// compared. See Communicator, "On GPUs".
  std::optional<GpuStream> gpu = std::nullopt;
};

/// A call as engines get it: checked, MEAN turned into SUM; count may be 0. `outputs` has one
/// buffer; of all_reduce also several of one dtype, combined as if they were one. In place:
/// outputs[i].data == inputs[i].data (all_reduce, reduce), inputs empty (broadcast).
struct CollectiveCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;           // reduce, broadcast
  std::size_t count = 0;  // elements of this rank's inputs, or of what it receives
  std::span<const ConstElements> inputs = {};  // all_reduce: as many as outputs; broadcast: none
  std::span<const Elements> outputs = {};      // reduce: of the root alone
  /// all_gather, reduce_scatter: elements of rank r's part, [size]. all_to_all: elements sent to
  /// rank r and received from rank r, [size] each.
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> receive_counts = {};
  std::uint64_t id = 0;  // CallOptions::id
};

}  // namespace tutti
