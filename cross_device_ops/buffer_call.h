// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/replica_buffer.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// One call, with the buffers of all members of the group.
struct BufferCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::span<const ReplicaBuffer> inputs;   // all_reduce, broadcast: none
  std::span<const ReplicaBuffer> outputs;  // reduce: one
  std::span<const std::size_t> counts;     // as for the `*_buffers` functions

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

/// `call` with `work` in each of its buffers.
class BoundCall {
 public:
  BoundCall(const BufferCall& call, DeviceWork& work);
  const BufferCall& call() const { return call_; }

 private:
  std::vector<ReplicaBuffer> inputs_;
  std::vector<ReplicaBuffer> outputs_;
  BufferCall call_;
};

/// `from`'s elements to the start of `to`, which may be the same memory. On GPUs as part of `work`,
/// or else (both on one device) by the compute stream.
void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// memcpy() that knows buffers without elements or memory.
void copy_elements(const std::byte* from, std::byte* to, std::size_t num_bytes);
/// The devices of a call's buffers.
std::vector<Device> devices_of(const BufferCall& call);

/// The sums of counts before each: where the parts begin.
std::vector<std::size_t> offsets_of(std::span<const std::size_t> counts);

}  // namespace tutti::internal
