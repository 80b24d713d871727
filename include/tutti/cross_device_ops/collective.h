// One collective call, which every rank of a group makes at the same point in the program, and its
// buffers.
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

/// Collective operations, with MPI's names.
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
/// combines() returns true if the collective combines values with a ReduceOp, has_root() if it has
/// a root.
bool combines(Collective collective);
bool has_root(Collective collective);

/// Elements in memory that the caller owns, at any alignment.
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

/// Same as ConstElements, but writable. The memory must outlive the call or, for a started call,
/// its handle.
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

/// One contiguous buffer of a replica, without ownership. Input buffers are only read.
struct ReplicaBuffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;
  /// For a buffer on a GPU: streams on which a called operation queues its work; else nullptr.
  internal::DeviceWork* work = nullptr;
  /// Key and name for state that an operation keeps between calls, such as its rounding errors.
  /// They are the same in every call for one buffer (such as a gradient bucket in every step) and
  /// differ between buffers. `id` is 0 if calls are not known to repeat. The name is valid until
  /// the call returns. An operation with state is not sliceable().
  std::uint64_t id = 0;
  std::string_view name = {};
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data), count};
  }
  std::size_t num_bytes() const { return count * size_of(dtype); }
};

/// Determinism that an operation guarantees for its sums. kCanonical: bit-identical to sums along
/// the tree of docs/determinism.md. kRunToRun: bit-identical from run to run. kNone: no guarantee.
enum class Determinism { kNone, kRunToRun, kCanonical };
std::string_view to_string(Determinism determinism);  // "canonical", ...

/// GPU and stream of a call whose buffers are GPU memory.
struct GpuStream {
  /// n of gpu:n, which is CUDA's device n unless GPUs are split (set_virtual_gpus()).
  int gpu = 0;
  /// A cudaStream_t of that GPU; nullptr: CUDA's default stream. The call begins after all work
  /// that is already queued on the stream; work queued later sees the result.
  void* stream = nullptr;
};

/// Options for one call. The name and the shape are compared across ranks.
struct CallOptions {
  std::string_view name = {};  // truncated to 47 characters; valid until the call has ended
  const Shape* shape = nullptr;
  /// ReplicaBuffer::id of this rank's buffer; 0: all calls with the same name are assumed to use
  /// the same buffer.
  std::uint64_t id = 0;
  std::optional<Duration> timeout = std::nullopt;  // default: the communicator's; plugins ignore it
  /// Set if all buffers of the call are in this GPU's memory, from any CUDA allocator. Must be set
  /// on all ranks or on none; the ranks compare this. See Communicator, "On GPUs".
  std::optional<GpuStream> gpu = std::nullopt;
};

/// A call as an engine receives it: checked, with MEAN replaced by SUM; count may be 0. `outputs`
/// has one buffer, or for all_reduce several of one dtype, combined as if they were one. An
/// in-place call has outputs[i].data == inputs[i].data (all_reduce, reduce) or no inputs
/// (broadcast).
struct CollectiveCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;           // reduce, broadcast
  std::size_t count = 0;  // number of input elements, or of output elements if there are no inputs
  std::span<const ConstElements> inputs = {};  // all_reduce: as many as outputs; broadcast: none
  std::span<const Elements> outputs = {};      // reduce: used on the root only
  /// Element counts, [size] each. all_gather, reduce_scatter: counts[r] is the length of rank r's
  /// part. all_to_all: counts[r] elements are sent to rank r, and receive_counts[r] elements are
  /// received from it.
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> receive_counts = {};
  std::uint64_t id = 0;  // CallOptions::id
};

}  // namespace tutti
