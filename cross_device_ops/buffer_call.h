// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

/// One call, with the buffers of all members of the group.
struct BufferCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::span<const ReplicaBuffer> inputs = {};   // all_reduce, broadcast: none
  std::span<const ReplicaBuffer> outputs = {};  // reduce: one
  std::span<const std::size_t> counts = {};     // as for the `*_buffers` functions
  std::size_t group_size = 0;                   // 0: all members are here

  bool reduces() const { return combines(collective); }
  const ReplicaBuffer& first() const { return outputs.empty() ? inputs.front() : outputs.front(); }
  std::size_t num_members() const {
    if (group_size > 0) return group_size;
    return inputs.empty() ? outputs.size() : inputs.size();
  }
  /// Whether a buffer begins between two multiples of its element's size.
  bool is_misaligned() const;
};

/// Owns copies of buffers, aligned, as elements of `dtype`: their own, or float32 for 16-bit types
/// (which must be aligned). On the device of the original; made by the compute stream, or, where
/// the originals have a `work`, as part of that and kept by it.
class BufferCopies {
 public:
  enum class Content { kCopied, kUndefined };
  BufferCopies() = default;
  BufferCopies(std::span<const ReplicaBuffer> originals, DType dtype, Content content);
  std::span<const ReplicaBuffer> buffers() const { return copies_; }
  /// Copies everything to where it came from, rounding once.
  void write_back() const;

 private:
  std::vector<ReplicaBuffer> originals_;
  std::vector<MutableTensor> storage_;
  std::vector<ReplicaBuffer> copies_;
};

/// `call` on copies of its buffers.
class StagedCall {
 public:
  StagedCall(const BufferCall& call, DType dtype);
  const BufferCall& call() const { return call_; }
  void write_back() const { outputs_.write_back(); }

 private:
  BufferCopies inputs_;
  BufferCopies outputs_;
  BufferCall call_;
};

/// `from`'s elements to the start of `to`, which may be the same memory. On GPUs as part of `work`,
/// or else (both on one device) by the compute stream.
void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to);

/// The same; from or to float32, if the types differ. Host memory of any alignment.
void convert(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// MEAN's division. Floating types, at any alignment.
void divide(const ReplicaBuffer& buffer, std::size_t divisor);

/// The elements of a communicator's call; operations do not write to inputs.
inline ReplicaBuffer buffer_of(const Elements& elements) {
  return {elements.data, elements.count, elements.dtype, {}};
}
inline ReplicaBuffer buffer_of(const ConstElements& elements) {
  return {const_cast<std::byte*>(elements.data), elements.count, elements.dtype, {}};
}

/// Where parts of these lengths begin, and where the last one ends.
std::vector<std::size_t> cuts_of(std::span<const std::size_t> counts);

/// What the operation implements, of all members in this process or of some: no checks, no MEAN, no
/// fallback. reduce has no output where the root is in another process.
void carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call);

/// Carries out a checked call on buffers of any alignment and type, with MEAN: on copies where the
/// operation needs it, and with a fallback to "reduction_to_one_device" for what it does not
/// support. On GPUs the work is joined, or `pending` gets it.
void carry_out(CrossDeviceOps& ops, const BufferCall& call, const CommunicationOptions& options,
               PendingReduction* pending);

}  // namespace tutti::internal
