// CrossDeviceOps: the interface for operations that combine values from several devices.
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

/// A value to be reduced, and the devices (one or more) that receive the result.
struct ReduceTask {
  PerReplica<Gradient> value;
  std::vector<Device> destinations;
};

/// Work that CrossDeviceOps::start_all_reduce_in_place() has queued on GPUs, outside their compute
/// streams. Empty if nothing is pending. Not thread-safe.
class PendingReduction {
 public:
  PendingReduction();
  /// Joins the work, but does not run the actions of after_join().
  ~PendingReduction();
  PendingReduction(PendingReduction&&) noexcept;
  PendingReduction& operator=(PendingReduction&&) noexcept;

  /// Makes later work on the compute streams wait for the result. Does not block the host.
  void join();

  /// Called by operations. add() adds work to be joined; after_join() adds an action. join() runs
  /// the actions in the order in which they were added.
  void add(std::unique_ptr<internal::DeviceWork> work);
  void after_join(std::function<void()> action);

 private:
  std::vector<std::unique_ptr<internal::DeviceWork>> works_;
  std::vector<std::function<void()>> actions_;
};

/// The sum of a bucket of gradients, or of a slice of it, over the CPU replicas of this process.
/// Elements are numbered within the bucket; a replica may store each segment's values at a
/// different address. Argument to CrossDeviceOps::sum_segments(), valid until that call returns.
struct SegmentedSum {
  /// Elements [begin, end) of the bucket that belong to one variable.
  struct Segment {
    std::size_t variable = 0;  // index in the caller's list
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t count() const { return end - begin; }
  };

  std::uint64_t id = 0;        // id of the bucket, as in ReplicaBuffer
  std::string_view name = {};  // name of the bucket
  DType dtype = DType::kFloat32;
  /// Type of the sums: `dtype`, or float32 for 16-bit values that are not to be rounded yet.
  DType sum_dtype = DType::kFloat32;
  std::span<const Device> replicas = {};
  /// Range [begin, end) of elements that contains all segments and the gaps between them.
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<Segment> segments = {};  // in increasing order
  /// For each sum of a segment, the replicas whose values are added. Only the operation "canonical"
  /// receives several nodes; other operations receive one node with all replicas.
  std::span<const CanonicalNode> nodes = {};
  std::vector<std::byte*> sums = {};  // [segment][node]: address of the segment's first sum

  /// Returns the address, possibly unaligned, of a replica's values in a block (a part of a
  /// segment). `copy` has room for the block, and may be nullptr unless `copies` is set.
  std::function<const std::byte*(std::size_t replica, const Segment& block, std::byte* copy)>
      values = {};
  /// Receives the sum of a block over all replicas. Empty: sums are not checked.
  std::function<void(const Segment& block, const std::byte* sum)> check = {};
  /// True if `values` writes to `copy`.
  bool copies = false;
};

/// Operation that combines the values of several devices: tf.distribute.CrossDeviceOps. The public
/// functions check arguments, pack small tensors, and turn MEAN into SUM and a division. They
/// reduce bfloat16 and float16 as float32 and round once if supports() returns false or the
/// reduction is MEAN. For other unsupported combinations they copy all values to one device and
/// reduce there. The public functions take the values of all members, so they work only for groups
/// within one process. A Communicator calls operations that span processes. A new algorithm
/// implements name, supports and all_reduce_buffers. Not thread-safe, except all_reduce_buffers of
/// a sliceable operation, and abort().
class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps() = default;
  virtual std::string_view name() const = 0;
  /// Returns true if all reductions that the operation provides (see provides()) support this
  /// combination.
  virtual bool supports(ReduceOp op, DType dtype, DeviceType device) const = 0;
  virtual Determinism determinism() const { return Determinism::kNone; }
  /// Returns true if several threads may call all_reduce_buffers concurrently on disjoint ranges of
  /// the same buffers, and sum_segments() on disjoint ranges of a bucket.
  virtual bool sliceable() const { return false; }
  /// Returns an upper bound on the error of a SUM or MEAN of floating-point types; `tutti conform`
  /// checks it. The error is relative to the sum, over the replicas, of each replica's largest
  /// magnitude in the buffer. 0 means that only additions round; infinity means that there is no
  /// bound. The bound is 0 if determinism() is kCanonical.
  virtual double max_relative_error() const { return 0.0; }
  /// Returns true if the operation's group may have members in other processes. The `*_buffers`
  /// functions then receive only the buffers of this process's replicas, whereas root and counts
  /// refer to the whole group. Every process makes the same calls in the same order.
  virtual bool spans_processes() const { return false; }
  /// Returns true if the operation overrides the `*_buffers` function of this collective. The
  /// defaults are composed of all_reduce_buffers and copies.
  virtual bool provides(Collective collective) const;
  /// Ends the running call and all later calls with kAborted and this reason. Thread-safe.
  virtual void abort(const Error& reason) noexcept;
  /// Returns true if work in GPU streams may still be running. Abandons work that has failed or
  /// takes too long; throws the reason if any was abandoned. Thread-safe, even during a call.
  virtual bool check_pending() { return false; }
  /// Returns the total size, in bytes, of this process's values that have been combined so far.
  /// Thread-safe.
  std::uint64_t bytes_reduced() const { return bytes_reduced_; }

  /// Returns the reduction of all replicas' values, on `destination`. IndexedSlices (SUM, MEAN) are
  /// concatenated in replica order, keeping duplicates (tf's rule). Throws kInvalidArgument for an
  /// empty PerReplica, differing shapes or types, MEAN of integers, or a mix of dense and sparse
  /// values.
  Gradient reduce(ReduceOp op, const PerReplica<Gradient>& value, Device destination);
  /// Overload that reduces once and copies the result to each of the destinations (one or more).
  PerReplica<Gradient> reduce(ReduceOp op, const PerReplica<Gradient>& value,
                              std::span<const Device> destinations);
  /// Performs several reductions, each with its own destinations. Returns results in the order of
  /// `tasks`.
  std::vector<PerReplica<Gradient>> batch_reduce(ReduceOp op, std::span<const ReduceTask> tasks,
                                                 const CommunicationOptions& options = {});
  /// Returns the combined value for each replica, on the device of that replica's value.
  PerReplica<Tensor> all_reduce(ReduceOp op, const PerReplica<Tensor>& value);
  /// Reduces many values, packed by options.bytes_per_pack; dense and sparse values may be mixed.
  /// Returns results in the caller's order.
  std::vector<PerReplica<Gradient>> batch_all_reduce(ReduceOp op,
                                                     std::span<const PerReplica<Gradient>> values,
                                                     const CommunicationOptions& options = {});
  PerReplica<Tensor> broadcast(const Tensor& value, std::span<const Device> destinations);
  /// Concatenates along `axis` in replica order, on `destination`; lengths along `axis` may differ.
  /// Throws kInvalidArgument for scalars, or if another dimension differs, naming that dimension;
  /// kUnimplemented for IndexedSlices.
  Tensor gather(const PerReplica<Tensor>& value, int axis, Device destination);
  [[noreturn]] Tensor gather(const PerReplica<IndexedSlices>& value, int axis, Device destination);
  /// Functions on plain buffers at any address, one per replica. op may be MEAN. They throw
  /// kInvalidArgument for inconsistent counts, types, roots or memory, naming the replicas. A call
  /// that the operation does not support falls back to copies to one device (logged once) or, with
  /// options.strict, throws kUnimplemented. Inputs that are not also outputs stay unchanged. Either
  /// all buffers are on CPUs or all on GPUs. On GPUs, the functions only queue work, which runs in
  /// order with the other work of the compute streams.
  void all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                           const CommunicationOptions& options = {});
  /// Same as all_reduce_in_place(), but does not block the compute streams of GPUs. The streams
  /// must not use the buffers before join() is called on the returned object, which makes the
  /// result visible to them. On CPUs, the reduction is complete on return.
  PendingReduction start_all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                                             const CommunicationOptions& options = {});
  void all_reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                  std::span<const ReplicaBuffer> outputs, const CommunicationOptions& options = {});
  /// Combines all inputs into `output`, which may be inputs[root].
  void reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs, const ReplicaBuffer& output,
              int root, const CommunicationOptions& options = {});
  /// Copies buffers[root] into all other buffers.
  void broadcast(std::span<const ReplicaBuffer> buffers, int root);
  /// Writes the concatenation of all inputs, in replica order, to each output. The inputs' counts
  /// may differ. inputs[r] may be the part of outputs[r] that receives it.
  void all_gather(std::span<const ReplicaBuffer> inputs, std::span<const ReplicaBuffer> outputs);
  /// Combines the inputs; outputs[r] receives part r. The count of each input is the sum of the
  /// outputs' counts. outputs[r] may be part r of inputs[r].
  void reduce_scatter(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      std::span<const ReplicaBuffer> outputs,
                      const CommunicationOptions& options = {});
  /// Sends a segment from every replica to every replica. counts[r * n + s], for n replicas, is the
  /// number of elements that replica r sends to s; inputs[r] is ordered by s, outputs[s] by r. If
  /// counts is empty, all segments have the same size.
  void all_to_all(std::span<const ReplicaBuffer> inputs, std::span<const ReplicaBuffer> outputs,
                  std::span<const std::size_t> counts = {});

  /// Sums gradients for strategies on CPUs: reads values in place and writes sums that replicas
  /// share. Default: copies the values into one flat buffer per replica, calls
  /// all_reduce_in_place() for these buffers, and copies the sums from replica 0's buffer.
  virtual void sum_segments(const SegmentedSum& sum, const CommunicationOptions& options = {});

 protected:
  // Functions that an operation implements. Buffers have been checked, are aligned for their
  // element type, and all have the same dtype. op is SUM, MIN, MAX or PRODUCT, and supported. There
  // are at least two members and one element. A buffer on a GPU has a `work` (device_work.h), which
  // queues operations on that GPU.

  /// Throws if the buffers contain a mistake that a fallback would hide, such as a device outside
  /// the group. Called before the functions below.
  virtual void require_buffers(std::span<const ReplicaBuffer> inputs,
                               std::span<const ReplicaBuffer> outputs) const;
  /// Combines the buffers, all of which have the same count, in place.
  virtual void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) = 0;
  /// Combines the inputs into *output, which is inputs[root] or a separate buffer. `output` is
  /// nullptr if the root is not local.
  virtual void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              const ReplicaBuffer* output, int root);
  /// Copies buffers[root] to all other buffers.
  virtual void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root);
  /// counts[r] is the length of member r's input.
  virtual void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                  std::span<const ReplicaBuffer> outputs,
                                  std::span<const std::size_t> counts);
  /// counts[r] is the length of member r's output.
  virtual void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                      std::span<const ReplicaBuffer> outputs,
                                      std::span<const std::size_t> counts);
  /// counts[r * size + s] is the number of elements that member r sends to member s.
  virtual void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                  std::span<const ReplicaBuffer> outputs,
                                  std::span<const std::size_t> counts);

  /// Adds to bytes_reduced(), for operations that override sum_segments().
  void note_reduced(std::uint64_t bytes) { bytes_reduced_ += bytes; }

 private:
  friend void internal::carry_out_unchecked(CrossDeviceOps& ops, const internal::BufferCall& call);
  void carry_out(const internal::BufferCall& call, const CommunicationOptions& options,
                 PendingReduction* pending = nullptr);

  std::atomic<std::uint64_t> bytes_reduced_{0};
};

}  // namespace tutti
