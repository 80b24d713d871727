// Collectives of the ranks of a group on plain memory: the library's reductions for any program.
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

/// What carries out calls on GPUs. kNccl: NCCL, where it is there and each rank has a GPU of its
/// own; else the hosts. kHosts: always the hosts, by the communicator's algorithm.
enum class GpuCallsBy { kNccl, kHosts };

struct CommunicatorOptions {
  /// A registered name: canonical, ring, halving_doubling, tree, hierarchical_copy,
  /// reduction_to_one_device, auto, mpi, or an operation or plugin that spans processes.
  std::string algorithm = "canonical";
  std::string plugin_options = "";  // as in CrossDeviceOpsSpec
  /// How long a call waits for the other ranks.
  Duration timeout = kDefaultTimeout;
  /// After this time a waiting call says in the log who is missing, where it is and since when.
  Duration stall_after = std::chrono::seconds(10);
  /// If one rank says kHosts it is the hosts.
  GpuCallsBy gpu_calls = GpuCallsBy::kNccl;
};

/// A started call. wait() it, in any order; destroyed before it ended, it waits (without throwing).
/// Movable. Threads: one at a time.
class CollectiveHandle {
 public:
  CollectiveHandle() = default;
  explicit CollectiveHandle(std::shared_ptr<internal::PendingCall> call);
  CollectiveHandle(CollectiveHandle&&) noexcept;
  CollectiveHandle& operator=(CollectiveHandle&&) noexcept;
  ~CollectiveHandle();
  /// Whether it ended, well or not.
  bool test() const;
  /// Throws what the call threw.
  void wait();

 private:
  std::shared_ptr<internal::PendingCall> call_;
};

/// How far one rank has come in its calls.
struct CallProgress {
  std::uint64_t entered = 0;   // calls begun so far
  std::uint64_t finished = 0;  // of those, ended, well or not
  std::string call;            // the last one: "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7"
  Duration since{};            // since it began, to some milliseconds
};

/// The collectives of one rank. Every rank of the group makes the same calls in the same order;
/// operation, reduction, type, count, shape, root and name are compared, and a difference is
/// kInvalidArgument on every rank, naming both sides and their lines. Arguments that are wrong on
/// one rank alone are an error on all: the others' names that rank and its reason. What all ranks
/// refuse within 2 s changes nothing: they may continue. Buffers are CPU memory of any alignment,
/// but for calls with CallOptions::gpu. bfloat16 and float16 are combined as float32 and rounded
/// once; MEAN is SUM divided by size(), of floating types only; bool has MIN and MAX only.
///
/// Other errors of every call: kDeadlineExceeded naming the ranks that did not come, kAborted,
/// kUnavailable (a peer is gone). After these later calls throw the same reason.
///
/// On GPUs (CallOptions::gpu) buffers are memory of one GPU, the same in all calls, and a call has
/// a place in a stream of the caller. The first call agrees who carries them out, which takes NCCL
/// some seconds. *NCCL*, where all ranks have it and a GPU of their own: the call returns when its
/// work is in the stream. Sums have NCCL's order, which differs from machine to machine, whatever
/// determinism() says. *The hosts* otherwise, for MIN and MAX of floating types, all_to_all and
/// compression, and always with GpuCallsBy::kHosts: the call waits for the stream, the algorithm
/// works in pinned memory in its order of sums, and the copy back is in the stream when the call
/// returns. barrier() waits for the stream and then for all ranks. Buffers stay as they are until
/// the stream has passed the call. What NCCL has begun ends when a rank aborts, when one has been
/// gone for 2 s, or after CommunicatorOptions::timeout: results are lost, the stream continues, and
/// later calls throw the reason. Also: kUnavailable where there is no such GPU, kFailedPrecondition
/// for a stream that is being captured.
///
/// Threads: one call at a time (start_* included); abort() from any thread.
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
  /// Of calls on host memory, and on GPUs by the hosts.
  Determinism determinism() const;
  /// CrossDeviceOps::max_relative_error() of the algorithm.
  double max_relative_error() const;
  bool supports(Collective collective, ReduceOp op, DType dtype) const;
  /// Allocates memory that calls reach without a copy: shared by the processes of a host. nullptr
  /// where all memory is alike.
  std::shared_ptr<BufferAllocator> allocator() const;
  /// Such memory as plain bytes, aligned to 64, not cleared; ordinary memory where there is no
  /// allocator, or too little left. It lives as long as its owners, also after the communicator.
  /// Any thread.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const;

  /// In place; afterwards every rank's buffer holds the combination of all.
  void all_reduce(ReduceOp op, const Elements& data, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  void all_reduce(ReduceOp op, const ConstElements& input, const Elements& output,
                  const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// Several buffers of one dtype, in place, as if they were one: a list of gradients.
  void all_reduce(ReduceOp op, std::span<const Elements> list, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// `output` counts on rank `root` alone, where it has input's length and may be input's memory.
  void reduce(ReduceOp op, const ConstElements& input, const Elements& output, int root,
              const CallOptions& options = {},
              const SourceLocation& where = SourceLocation::current());
  void broadcast(const Elements& data, int root, const CallOptions& options = {},
                 const SourceLocation& where = SourceLocation::current());
  /// Concatenates all inputs in rank order. counts[r] is the length of rank r's input; empty: all
  /// equal. output.count is their sum.
  void all_gather(const ConstElements& input, const Elements& output,
                  std::span<const std::size_t> counts = {}, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  /// Combines all inputs; rank r gets part r. counts[r] is that part's length; empty: input cut
  /// evenly, kInvalidArgument when size() does not divide it.
  void reduce_scatter(ReduceOp op, const ConstElements& input, const Elements& output,
                      std::span<const std::size_t> counts = {}, const CallOptions& options = {},
                      const SourceLocation& where = SourceLocation::current());
  /// Part s of rank r's input becomes part r of rank s's output. Empty counts: even parts.
  void all_to_all(const ConstElements& input, const Elements& output,
                  std::span<const std::size_t> send_counts = {},
                  std::span<const std::size_t> receive_counts = {}, const CallOptions& options = {},
                  const SourceLocation& where = SourceLocation::current());
  void barrier(const CallOptions& options = {},
               const SourceLocation& where = SourceLocation::current());

  /// The same without waiting: run in the order of starting by a thread of the communicator.
  /// Memory must stay as it is until the handle's wait() returned.
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

  /// Groups of some of the ranks, with calls of their own. Called by every rank with the members
  /// (increasing) of the group that it is to be in; none: it gets nullptr. Throws kInvalidArgument
  /// on every rank when two ranks name each other in different groups.
  std::unique_ptr<Communicator> group(const std::vector<int>& members,
                                      const CallOptions& options = {},
                                      const SourceLocation& where = SourceLocation::current());

  /// In place of a call that this rank alone cannot make, as for wrong arguments. Throws `reason`.
  [[noreturn]] void refuse(Collective collective, const Error& reason,
                           const CallOptions& options = {},
                           const SourceLocation& where = SourceLocation::current());
  /// Ends the calls of all ranks, running and later, with kAborted and this reason.
  void abort(const Error& reason) noexcept;

  /// The last calls of this rank (4,096 at most), oldest first, a line each: number, call, state,
  /// seconds.
  std::vector<std::string> recent_calls() const;
  /// Any thread, also while a call waits.
  CallProgress progress() const;

 private:
  std::unique_ptr<internal::CommunicatorState> state_;
};

/// Communicators of `size` threads of this process, by rank. "canonical" and "auto" work on the
/// ranks' memory directly; others send messages from thread to thread.
std::vector<std::unique_ptr<Communicator>> in_process_communicators(
    int size, const CommunicatorOptions& options = {});

/// The rank of `transport`; algorithms that work with messages.
std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport,
                                                const CommunicatorOptions& options = {});

/// The rank group.first_rank, with one local replica. Needs group.transport and, for plugins,
/// group.store. kUnimplemented for a name that works in one process alone.
std::unique_ptr<Communicator> make_communicator(const Group& group,
                                                const CommunicatorOptions& options = {});

// The same on tensors. Errors as Communicator's.

/// The combination of all ranks' tensors, of one shape and dtype. Shapes are compared.
Tensor all_reduce(Communicator& communicator, ReduceOp op, const Tensor& value,
                  CallOptions options = {}, SourceLocation where = SourceLocation::current());

/// The slices of all ranks one after the other, in rank order, without removing duplicates (tf's
/// rule). SUM or MEAN, else kInvalidArgument; numbers of rows may differ.
IndexedSlices all_reduce(Communicator& communicator, ReduceOp op, const IndexedSlices& value,
                         CallOptions options = {},
                         SourceLocation where = SourceLocation::current());

/// Concatenates along the first dimension in rank order; its length may differ, the others not.
Tensor all_gather(Communicator& communicator, const Tensor& value, CallOptions options = {},
                  SourceLocation where = SourceLocation::current());

/// Rank `root`'s tensor; the others give one of the same shape and dtype.
Tensor broadcast(Communicator& communicator, const Tensor& value, int root,
                 CallOptions options = {}, SourceLocation where = SourceLocation::current());

}  // namespace tutti
