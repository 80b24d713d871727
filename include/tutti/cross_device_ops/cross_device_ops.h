// Combines the values of several devices: the plugin point.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/communication_options.h"
#include "tutti/cross_device_ops/per_replica.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

class CrossDeviceOps;
namespace internal {
struct BufferCall;
void carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call);
}  // namespace internal

/// A value to be reduced, and the devices (one or more) that want the result.
struct ReduceTask {
  PerReplica<Gradient> value;
  std::vector<Device> destinations;
};

/// What CrossDeviceOps::start_all_reduce_in_place() has queued on GPUs, beside their compute
/// streams. Empty: nothing is pending. Threads: one at a time.
class PendingReduction {
 public:
  PendingReduction();
  /// Joins.
  ~PendingReduction();
  PendingReduction(PendingReduction&&) noexcept;
  PendingReduction& operator=(PendingReduction&&) noexcept;

  /// What the compute streams get from now on sees the result. Does not wait for a GPU.
  void join();

  /// For operations: work to be joined, and what is to be queued when it is, in this order.
  void add(std::unique_ptr<internal::DeviceWork> work);
  void after_join(std::function<void()> action);

 private:
  std::vector<std::unique_ptr<internal::DeviceWork>> works_;
  std::vector<std::function<void()>> actions_;
};

/// The sum of a bucket of gradients, or of a slice of it, over the replicas of this process, on
/// CPUs. Elements are numbered in the bucket; each replica has the values of a segment somewhere
/// else. The argument of CrossDeviceOps::sum_segments(), valid until that returns.
struct SegmentedSum {
  /// Elements [begin, end) of the bucket that belong to one variable.
  struct Segment {
    std::size_t variable = 0;  // of the caller's list
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t count() const { return end - begin; }
  };

  std::uint64_t id = 0;        // of the bucket, as in ReplicaBuffer
  std::string_view name = {};  // of the bucket
  DType dtype = DType::kFloat32;
  /// Of the sums: `dtype`, or float32 for 16-bit values that are not to be rounded yet.
  DType sum_dtype = DType::kFloat32;
  std::span<const Device> replicas = {};
  /// Elements [begin, end) hold all segments, and gaps between them.
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<Segment> segments = {};  // increasing
  /// Which replicas a sum is of. Operations other than "canonical" are asked for the sum of all.
  std::span<const CanonicalNode> nodes = {};
  std::vector<std::byte*> sums = {};  // [segment][node]: where the segment's first element goes

  /// Returns where a replica's values of a block (a part of a segment) are; any alignment. `clean`:
  /// with zeros in place of what is not finite, if the caller wants these. `copy` has room for the
  /// block; nullptr is enough if `copies` and `clean` are false.
  std::function<const std::byte*(std::size_t replica, const Segment& block, bool clean,
                                 std::byte* copy)>
      values = {};
  /// Gets the sum of a block over all replicas, and may change it. Returns true if the block is to
  /// be summed again from clean values. Empty: sums are not checked.
  std::function<bool(const Segment& block, std::byte* sum, bool clean)> check = {};
  /// `values` writes to `copy`, also if `clean` is false.
  bool copies = false;
  /// The first sum is of clean values already: to read values twice would count them twice.
  bool clean_first = false;
};

/// Combines the values of several devices. The public functions check arguments, pack small
/// tensors, turn MEAN into SUM and a division, and fall back to copies to one device when
/// supports() says no; bfloat16 and float16 (for MEAN, too) are then reduced as float32 and rounded
/// once. They take the values of all members, so they are for groups of one process; a Communicator
/// calls operations that span processes. A new algorithm writes name, supports and
/// all_reduce_buffers. tf.distribute.CrossDeviceOps. Threads: one call at a time, except
/// all_reduce_buffers of a sliceable operation, and abort().
class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps() = default;
  virtual std::string_view name() const = 0;
  /// Whether the reductions that it provides() can do this.
  virtual bool supports(ReduceOp op, DType dtype, DeviceType device) const = 0;
  virtual Determinism determinism() const { return Determinism::kNone; }
  /// Whether all_reduce_buffers may be called by several threads at once on disjoint ranges of the
  /// same buffers, and sum_segments() on disjoint ranges of a bucket.
  virtual bool sliceable() const { return false; }
  /// Upper bound of the error of a SUM or MEAN of floating types, in units of the sum over replicas
  /// of a replica's largest magnitude in the buffer; `tutti conform` checks it. 0: each addition is
  /// rounded, and nothing else; infinity: lossy, without a bound. kCanonical implies 0.
  virtual double max_relative_error() const { return 0.0; }
  /// Whether the group that it was made for may have members in other processes. Then the
  /// `*_buffers` functions get this process's replicas alone, roots and counts are those of the
  /// whole group, and every process makes the same calls in the same order.
  virtual bool spans_processes() const { return false; }
  /// Whether the function `*_buffers` of this collective is its own. Others are composed of
  /// all_reduce_buffers and copies.
  virtual bool provides(Collective collective) const;
  /// Ends a running call and all later ones with kAborted and this reason. Any thread.
  virtual void abort(const Error& reason) noexcept;
  /// Whether work in the streams of GPUs may not be done yet. Throws the reason if such work was
  /// given up; gives it up if it has failed or takes too long. Any thread, also beside a call.
  virtual bool check_pending() { return false; }
  /// Bytes of all values of this process's replicas that it has combined. Any thread.
  std::uint64_t bytes_reduced() const { return bytes_reduced_; }

  /// The values of all replicas combined, on `destination`. IndexedSlices (SUM, MEAN) are
  /// concatenated in replica order, duplicates kept (tf's rule). kInvalidArgument for an empty
  /// PerReplica, differing shapes or types, MEAN of integers, a mix of dense and sparse.
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
  /// Every replica gets the concatenation along the first dimension, whose lengths may differ.
  PerReplica<Tensor> all_gather(const PerReplica<Tensor>& value);
  /// Values of one shape are combined and cut along the first dimension: replica r gets the r-th of
  /// V parts, lengths[r] rows long. No lengths: equal parts, kInvalidArgument when V does not
  /// divide the dimension.
  PerReplica<Tensor> reduce_scatter(ReduceOp op, const PerReplica<Tensor>& value,
                                    std::span<const std::int64_t> lengths = {});
  /// Cuts each value along the first dimension into V parts; replica s gets part s of each replica,
  /// concatenated in replica order. lengths[r * V + s]: rows that r sends to s; none: equal parts.
  PerReplica<Tensor> all_to_all(const PerReplica<Tensor>& value,
                                std::span<const std::int64_t> lengths = {});

  /// On plain buffers at any address, one per replica. op may be MEAN. kInvalidArgument for counts,
  /// types, roots and memory that do not fit together, naming the replicas. What the operation does
  /// not support falls back (logged once) or, with options.strict, throws kUnimplemented. Inputs
  /// stay as they are where they are no output. All buffers are on CPUs or all on GPUs; on GPUs
  /// work is only queued, after what the compute streams hold and before what they get later.
  void all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                           const CommunicationOptions& options = {});
  /// The same beside the compute streams of GPUs: these see the result once the returned object is
  /// joined, and must leave the buffers alone before. On CPUs it is done when this returns.
  PendingReduction start_all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                                             const CommunicationOptions& options = {});
  void all_reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                  std::span<const ReplicaBuffer> outputs, const CommunicationOptions& options = {});
  /// Into `output`, which may be inputs[root].
  void reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs, const ReplicaBuffer& output,
              int root, const CommunicationOptions& options = {});
  /// Copies buffers[root] into the others.
  void broadcast(std::span<const ReplicaBuffer> buffers, int root);
  /// Each output gets all inputs, in replica order, of any counts. inputs[r] may be its own part of
  /// outputs[r].
  void all_gather(std::span<const ReplicaBuffer> inputs, std::span<const ReplicaBuffer> outputs);
  /// outputs[r] gets part r of the combination; the outputs' counts add up to that of each input.
  /// outputs[r] may be its own part of inputs[r].
  void reduce_scatter(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      std::span<const ReplicaBuffer> outputs,
                      const CommunicationOptions& options = {});
  /// counts[r * V + s]: elements that replica r sends to s, in the order of s in inputs[r] and of r
  /// in outputs[s]. None: equal parts.
  void all_to_all(std::span<const ReplicaBuffer> inputs, std::span<const ReplicaBuffer> outputs,
                  std::span<const std::size_t> counts = {});

  /// Strategies on CPUs sum gradients by this: values where they are, into sums that replicas
  /// share. Default: copies into one flat buffer per replica for all_reduce_in_place(); the sum is
  /// replica 0's.
  virtual void sum_segments(const SegmentedSum& sum, const CommunicationOptions& options = {});

 protected:
  // What an operation implements, on buffers that are checked and aligned to their elements, of one
  // dtype; op is SUM, MIN, MAX or PRODUCT, and supported; at least two members and an element.
  // Buffers on GPUs have a `work` (device_work.h), which queues what is done to them.

  /// Throws for buffers for which a fallback would hide a mistake. Before anything else.
  virtual void require_buffers(std::span<const ReplicaBuffer> inputs,
                               std::span<const ReplicaBuffer> outputs) const;
  /// In place, over buffers of one count.
  virtual void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) = 0;
  /// Into *output, which is inputs[root] or apart from all; nullptr where the root is not local.
  virtual void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              const ReplicaBuffer* output, int root);
  /// Copies buffers[root] into the others.
  virtual void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root);
  /// counts[r] is the length of member r's input.
  virtual void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                  std::span<const ReplicaBuffer> outputs,
                                  std::span<const std::size_t> counts);
  /// counts[r] is the length of member r's output.
  virtual void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                      std::span<const ReplicaBuffer> outputs,
                                      std::span<const std::size_t> counts);
  /// counts[r * size + s]: what member r sends to member s.
  virtual void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                  std::span<const ReplicaBuffer> outputs,
                                  std::span<const std::size_t> counts);

  /// For operations with a sum_segments() of their own: counts in bytes_reduced().
  void note_reduced(std::uint64_t bytes) { bytes_reduced_ += bytes; }

 private:
  friend void internal::carry_out_unchecked(CrossDeviceOps& ops, const internal::BufferCall& call);
  void carry_out(const internal::BufferCall& call, const CommunicationOptions& options,
                 PendingReduction* pending = nullptr);

  std::atomic<std::uint64_t> bytes_reduced_{0};
};

}  // namespace tutti
