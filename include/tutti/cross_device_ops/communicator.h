// Collectives on plain memory between the ranks of a group, without a strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/cross_device_ops/transport.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

namespace internal {
class CollectiveEngine;
class CommunicatorState;
struct PendingCall;
}  // namespace internal

/// Implementation of calls on GPUs. kNccl: NCCL if it is available and each rank has its own GPU,
/// otherwise the same as kHosts. kHosts: copies to host memory, where the communicator's algorithm
/// runs.
enum class GpuCallsBy { kNccl, kHosts };

struct CommunicatorOptions {
  /// A registered name: canonical, ring, hierarchical_copy, reduction_to_one_device, mpi, or
  /// another operation or plugin that spans processes.
  std::string algorithm = "canonical";
  std::string plugin_options = "";  // see CrossDeviceOpsSpec
  /// Maximum time that a call waits for the other ranks.
  Duration timeout = kDefaultTimeout;
  /// Time after which a waiting call logs the missing ranks, each with its state and the time spent
  /// in it.
  Duration stall_after = std::chrono::seconds(10);
  /// If any rank sets kHosts, all ranks use kHosts.
  GpuCallsBy gpu_calls = GpuCallsBy::kNccl;
};

/// Handle of an asynchronous call (start_*). wait() may be called on handles in any order. The
/// destructor waits for the call without throwing. Movable. Not thread-safe.
class CollectiveHandle {
 public:
  CollectiveHandle() = default;
  explicit CollectiveHandle(std::shared_ptr<internal::PendingCall> call);
  CollectiveHandle(CollectiveHandle&&) noexcept;
  CollectiveHandle& operator=(CollectiveHandle&&) noexcept;
  ~CollectiveHandle();
  /// Returns true if the call has ended, successfully or not.
  bool test() const;
  /// Waits for the call; throws its error.
  void wait();

 private:
  std::shared_ptr<internal::PendingCall> call_;
};

/// Progress of one rank through its calls.
struct CallProgress {
  std::uint64_t entered = 0;   // calls begun so far
  std::uint64_t finished = 0;  // calls that ended, successfully or not
  std::string call;            // latest call: "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7"
  Duration since{};            // time since that call began, accurate to a few milliseconds
};

/// The collectives of one rank. Every rank of the group makes the same calls in the same order.
/// Operation, reduction, type, count, shape, root and name are compared; if they differ, every rank
/// throws kInvalidArgument, naming both sides and their source lines. If arguments are wrong on one
/// rank only, all ranks throw, and the other ranks' error names that rank and its reason. If all
/// ranks refuse a call within 2 s, the communicator stays usable. Buffers are CPU memory of any
/// alignment, except in calls with CallOptions::gpu. bfloat16 and float16 are combined as float32
/// and rounded once. MEAN is SUM divided by size(), for floating-point types only; bool supports
/// MIN and MAX only.
///
/// Other errors that any call may throw: kDeadlineExceeded naming the ranks that did not join the
/// call, kAborted, or kUnavailable (a peer exited). After one of these, later calls throw the same
/// reason.
///
/// On GPUs (CallOptions::gpu), buffers are memory of one GPU, the same GPU in all calls. A call is
/// ordered within the caller's stream. On the first call, the ranks agree on the implementation;
/// NCCL's setup takes a few seconds.
///
/// *NCCL* is used if all ranks have it and each has its own GPU. The call returns when its work is
/// in the stream. NCCL determines the order of additions, which differs between machines,
/// regardless of determinism().
///
/// *The hosts* carry out the other calls: those with GpuCallsBy::kHosts, those without NCCL, every
/// all_to_all, and every MIN or MAX of floating-point types. The call waits for the stream, and the
/// algorithm works in pinned memory with its own order of additions. When the call returns, the
/// copy back to the GPU is in the stream.
///
/// barrier() waits for the stream and then for all ranks. Buffers must not change until the stream
/// has passed the call. An NCCL operation ends when a rank aborts, 2 s after a rank exits, or after
/// CommunicatorOptions::timeout. Its results are lost, the stream continues, and later calls throw
/// the reason. Throws kUnavailable if there is no such GPU, and kFailedPrecondition for a stream
/// that is being captured.
///
/// Not thread-safe: one call at a time (start_* included), except abort(), allocate() and
/// progress().
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<internal::CollectiveEngine> engine,
                        const CommunicatorOptions& options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  std::string_view name() const;
  /// Returns the guarantee for calls on host memory, and for GPU calls that the hosts carry out.
  Determinism determinism() const;
  /// Returns CrossDeviceOps::max_relative_error() of the algorithm.
  double max_relative_error() const;
  bool supports(Collective collective, ReduceOp op, DType dtype) const;
  /// Returns an allocator for memory that the processes of a host share, so that collectives access
  /// it without a copy; nullptr if collectives treat all memory alike.
  std::shared_ptr<BufferAllocator> allocator() const;
  /// Allocates memory from allocator() as plain bytes, aligned to 64 bytes and not cleared. Falls
  /// back to ordinary memory if there is no allocator or too little memory left. The memory stays
  /// valid while the pointer or a copy of it exists, even after the communicator is destroyed.
  /// Thread-safe.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const;

  /// Combines all ranks' buffers in place: afterwards, every rank's buffer holds the result.
  void all_reduce(ReduceOp op, const Elements& data, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  void all_reduce(ReduceOp op, const ConstElements& input, const Elements& output,
                  const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// Overload that reduces several buffers of one dtype in place, as if they were one buffer.
  void all_reduce(ReduceOp op, std::span<const Elements> list, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// Combines all inputs into the `output` of rank `root`. Only the root uses `output`, which has
  /// the length of `input` and may be the same memory.
  void reduce(ReduceOp op, const ConstElements& input, const Elements& output, int root,
              const CallOptions& options = {},
              const SourceLocation& where = SourceLocation::current());
  void broadcast(const Elements& data, int root, const CallOptions& options = {},
                 const SourceLocation& where = SourceLocation::current());
  /// Concatenates all inputs in rank order. counts[r] is the length of rank r's input; if counts is
  /// empty, all lengths are equal. output.count is the sum of the lengths.
  void all_gather(const ConstElements& input, const Elements& output,
                  std::span<const std::size_t> counts = {}, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// Combines all inputs; rank r receives part r. counts[r] is that part's length; empty: parts of
  /// equal size. Throws kInvalidArgument if the input cannot be divided equally.
  void reduce_scatter(ReduceOp op, const ConstElements& input, const Elements& output,
                      std::span<const std::size_t> counts = {}, const CallOptions& options = {},
                      const SourceLocation& where = SourceLocation::current());
  /// Sends part s of rank r's input to part r of rank s's output. Empty counts: parts of equal
  /// size.
  void all_to_all(const ConstElements& input, const Elements& output,
                  std::span<const std::size_t> send_counts = {},
                  std::span<const std::size_t> receive_counts = {}, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  void barrier(const CallOptions& options = {},
               const SourceLocation& where = SourceLocation::current());

  /// Asynchronous forms of the functions above: they return without waiting, and a thread of the
  /// communicator runs the calls in order. Memory must stay valid and unchanged until the handle's
  /// wait() has returned.
  CollectiveHandle start_all_reduce(ReduceOp op, const Elements& data,
                                    const CallOptions& options = {},
                                    const SourceLocation& where = SourceLocation::current());
  CollectiveHandle start_reduce(ReduceOp op, const ConstElements& input, const Elements& output,
                                int root, const CallOptions& options = {},
                                const SourceLocation& where = SourceLocation::current());
  CollectiveHandle start_broadcast(const Elements& data, int root, const CallOptions& options = {},
                                   const SourceLocation& where = SourceLocation::current());
  CollectiveHandle start_all_gather(const ConstElements& input, const Elements& output,
                                    std::span<const std::size_t> counts = {},
                                    const CallOptions& options = {},
                                    const SourceLocation& where = SourceLocation::current());
  CollectiveHandle start_reduce_scatter(ReduceOp op, const ConstElements& input,
                                        const Elements& output,
                                        std::span<const std::size_t> counts = {},
                                        const CallOptions& options = {},
                                        const SourceLocation& where = SourceLocation::current());
  CollectiveHandle start_all_to_all(const ConstElements& input, const Elements& output,
                                    std::span<const std::size_t> send_counts = {},
                                    std::span<const std::size_t> receive_counts = {},
                                    const CallOptions& options = {},
                                    const SourceLocation& where = SourceLocation::current());

  /// Creates a communicator for some of the ranks, with its own order of calls. Collective: every
  /// rank passes the members of its own group in increasing order. A rank without a group passes
  /// none and gets nullptr. Throws kInvalidArgument on every rank if two ranks name each other in
  /// different groups.
  std::unique_ptr<Communicator> group(const std::vector<int>& members,
                                      const CallOptions& options = {},
                                      const SourceLocation& where = SourceLocation::current());

  /// Takes the place of a call that this rank cannot make, for example because of wrong arguments.
  /// Throws `reason`, and makes the other ranks' calls throw.
  [[noreturn]] void refuse(Collective collective, const Error& reason,
                           const CallOptions& options = {},
                           const SourceLocation& where = SourceLocation::current());
  /// Makes the running call and all later calls fail on all ranks, with kAborted and this reason.
  void abort(const Error& reason) noexcept;

  /// Returns this rank's progress. Thread-safe, even while a call waits.
  CallProgress progress() const;

 private:
  std::unique_ptr<internal::CommunicatorState> state_;
};

/// Returns communicators for `size` threads of this process, in rank order. "canonical" works
/// directly on the ranks' memory; other algorithms send messages between threads.
std::vector<std::unique_ptr<Communicator>> in_process_communicators(
    int size, const CommunicatorOptions& options = {});

/// Returns a communicator for this rank of `transport`. Requires: the algorithm sends messages.
std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport,
                                                const CommunicatorOptions& options = {});

/// Returns the communicator of rank group.first_rank, with one local replica. Requires:
/// group.transport and, for plugins, group.store. Throws kUnimplemented for an operation that works
/// only within one process.
std::unique_ptr<Communicator> make_communicator(const Group& group,
                                                const CommunicatorOptions& options = {});

// Overloads for tensors. They throw the same errors as Communicator.

/// Returns the reduction of all ranks' tensors, which must have equal shapes and dtypes; both are
/// compared across ranks.
Tensor all_reduce(Communicator& communicator, ReduceOp op, const Tensor& value,
                  CallOptions options = {}, SourceLocation where = SourceLocation::current());

/// Returns the slices of all ranks concatenated in rank order, keeping duplicates (tf's rule).
/// Throws kInvalidArgument unless op is SUM or MEAN. Ranks may have different numbers of rows.
IndexedSlices all_reduce(Communicator& communicator, ReduceOp op, const IndexedSlices& value,
                         CallOptions options = {},
                         SourceLocation where = SourceLocation::current());

/// Concatenates along the first dimension, in rank order. The length of that dimension may differ
/// between ranks.
Tensor all_gather(Communicator& communicator, const Tensor& value, CallOptions options = {},
                  SourceLocation where = SourceLocation::current());

/// Returns rank `root`'s tensor. The other ranks pass a tensor of the same shape and dtype.
Tensor broadcast(Communicator& communicator, const Tensor& value, int root,
                 CallOptions options = {}, SourceLocation where = SourceLocation::current());

}  // namespace tutti
