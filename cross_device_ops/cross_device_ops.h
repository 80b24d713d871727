// Combines the values of several devices: the plugin point.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/communication_options.h"
#include "tutti/cross_device_ops/per_replica.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// One contiguous buffer of a replica. Reductions are in place.
struct ReplicaBuffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data), count};
  }
};

/// What an operation promises about the order of additions. kCanonical: along the tree of
/// docs/determinism.md, the same bits as every other canonical operation. kRunToRun: the same bits
/// each run. kNone: nothing.
enum class Determinism { kNone, kRunToRun, kCanonical };
std::string_view to_string(Determinism determinism);

/// A value to be reduced, and the devices (one or more) that want the result.
struct ReduceTask {
  PerReplica<Gradient> value;
  std::vector<Device> destinations;
};

/// Combines the values of several devices. The public functions check arguments, pack small tensors
/// into flat buffers, turn MEAN into SUM and a division, and fall back to copies to one device when
/// supports() says no. Where it says no to bfloat16 or float16 (and for MEAN) these are reduced as
/// float32 and rounded once. A new algorithm writes three short functions: name, supports,
/// all_reduce_buffers. tf.distribute.CrossDeviceOps. Threads: one call at a time, except
/// all_reduce_buffers of a sliceable operation.
class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps() = default;
  virtual std::string_view name() const = 0;
  virtual bool supports(ReduceOp op, DType dtype, DeviceType device) const = 0;
  virtual Determinism determinism() const { return Determinism::kNone; }
  /// Whether all_reduce_buffers may be called by several threads at once on disjoint ranges of the
  /// same buffers.
  virtual bool sliceable() const { return false; }

  /// The values of all replicas combined, on `destination`. IndexedSlices (SUM, MEAN) are
  /// concatenated in replica order without removing duplicates (tf's rule). kInvalidArgument for an
  /// empty PerReplica, differing shapes or dtypes (naming the replicas), MEAN of a type that is not
  /// floating, a mix of dense and sparse.
  Gradient reduce(ReduceOp op, const PerReplica<Gradient>& value, Device destination);
  /// The same, reduced once and copied to each of the destinations (one or more).
  PerReplica<Gradient> reduce(ReduceOp op, const PerReplica<Gradient>& value,
                              std::span<const Device> destinations);
  /// Several reductions at once, each with its own destinations; results in the caller's order.
  std::vector<PerReplica<Gradient>> batch_reduce(ReduceOp op, std::span<const ReduceTask> tasks,
                                                 const CommunicationOptions& options = {});
  /// The same result for every replica, each on the device of its value.
  PerReplica<Tensor> all_reduce(ReduceOp op, const PerReplica<Tensor>& value);
  /// Many values at once, packed by options.bytes_per_pack; results in the caller's order, dense
  /// and sparse mixed.
  std::vector<PerReplica<Gradient>> batch_all_reduce(ReduceOp op,
                                                     std::span<const PerReplica<Gradient>> values,
                                                     const CommunicationOptions& options = {});
  PerReplica<Tensor> broadcast(const Tensor& value, std::span<const Device> destinations);
  /// Concatenates along `axis` in replica order, on `destination`; lengths along `axis` may differ.
  /// kInvalidArgument naming the dimension that differs, or rank 0; kUnimplemented for
  /// IndexedSlices.
  Tensor gather(const PerReplica<Tensor>& value, int axis, Device destination);
  [[noreturn]] Tensor gather(const PerReplica<IndexedSlices>& value, int axis, Device destination);

  /// In place on plain buffers, checked: what the public functions above and the gradient bucketer
  /// stand on. Buffers have one count and dtype. op may be MEAN. Falls back (saying so once) or,
  /// with options.strict, throws kUnimplemented when unsupported.
  void all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                           const CommunicationOptions& options = {});

 protected:
  /// SUM, MIN, MAX or PRODUCT over buffers of one count and dtype; at least two buffers, count > 0.
  virtual void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) = 0;
  /// Copies buffers[root] into the others.
  virtual void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root);
};

/// Combines `inputs` (one per replica) into `output` along the canonical tree over the replica
/// number: in each round neighbour 2i+1 is added to 2i, an odd last one passes up. 16-bit numbers
/// are combined as floats and rounded once. Memory of any alignment. Inputs are not changed; `output`
/// may be one of them. MEAN is refused. docs/determinism.md.
void reduce_along_tree(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                       std::byte* output, std::size_t count);

/// The same for tensors of one shape and dtype (one per replica, on any device): result on
/// `destination`. MEAN divides by the number of values; for integers MEAN gives float32 (tf's true
/// division).
Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination);

}  // namespace tutti
