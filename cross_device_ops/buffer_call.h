// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
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

  bool reduces() const;
  std::size_t num_members() const { return inputs.empty() ? outputs.size() : inputs.size(); }
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

/// The sums of counts before each: where the parts begin.
std::vector<std::size_t> offsets_of(std::span<const std::size_t> counts);

/// What the operation implements, of all members in this process or of some: no checks, no MEAN, no
/// fallback. reduce has no output where the root is in another process.
void carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call);

// What buffers of several replicas must have in common before anything is done with them.
// All throw kInvalidArgument; `who` is the operation's name.

void require_mean_is_possible(ReduceOp op, DType dtype);
/// MEAN of floating types, MIN and MAX alone of bool.
void require_reduction(std::string_view who, ReduceOp op, DType dtype);
void require_root(std::string_view who, int root, std::size_t num_members);
/// One or more, of one count and dtype.
void require_equal_buffers(std::string_view who, std::span<const ReplicaBuffer> buffers);
/// One or more, as many outputs as inputs, all of one dtype.
void require_pairs(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs);
/// `what` ("the output of replica 2") has `expected` elements.
void require_count(std::string_view who, std::string_view what, std::size_t expected,
                   std::size_t got);
/// All on CPUs or all on GPUs, and no output overlaps another output, or an input other than as
/// in_place(input, output) says.
void require_apart(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs,
                   const std::function<bool(std::size_t input, std::size_t output)>& in_place);

}  // namespace tutti::internal
