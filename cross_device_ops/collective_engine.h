// Carries out collectives for one rank: with shared memory, with messages, or with a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// The side of a Communicator that its caller does not see. Every engine compares the headers of
/// all ranks: when two differ, run() throws kInvalidArgument with mismatch_message() of both on
/// every rank. Threads: run() is called by one thread at a time, abort() by any.
class CollectiveEngine {
 public:
  virtual ~CollectiveEngine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The algorithm's name, as registered.
  virtual std::string_view name() const = 0;
  virtual bool supports(Collective collective, ReduceOp op, DType dtype) const = 0;
  virtual Determinism determinism() const = 0;
  virtual double max_relative_error() const { return 0.0; }
  /// Returns true if run() takes an all_reduce of several buffers; else they come as one.
  virtual bool takes_lists() const { return false; }
  /// Of buffers that run() reaches without a copy; nullptr where all memory is alike.
  virtual std::shared_ptr<BufferAllocator> allocator() { return nullptr; }

  /// Blocks until this rank's part is done. Throws kInvalidArgument (mismatch), kDeadlineExceeded
  /// naming the ranks that did not come, kAborted, kUnavailable. After any of these the group
  /// cannot be used: later calls throw the same reason.
  virtual void run(const CollectiveCall& call, const CollectiveHeader& header,
                   TimePoint deadline) = 0;
  /// Ends the calls of all ranks of the group, running and later, with kAborted and the reason.
  virtual void abort(const Error& reason) noexcept = 0;

  /// Why a call cannot end that this rank has begun and does not wait for in run(), for a GPU does
  /// it: kAborted, or kUnavailable naming a rank that is gone, be it because it has finished.
  /// Beside run(), by the thread that calls tend(), once a call has been run.
  virtual std::optional<Error> failure_of_peer() { return std::nullopt; }

  /// Some ranks as a group of its own, with its own order of calls. Called by all members of
  /// `ranks` (numbers in this group, increasing, this one among them); `number` counts the groups
  /// made of this one from 1 and is equal on all.
  virtual std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                                     std::uint32_t number) = 0;

  /// Answers peers that ask where this rank is with `own_state()`: "waits in broadcast(...) #3 at
  /// a.cc:3 since 10.2 s", "is in no collective; its last one was ...". Never blocks. Called about
  /// ten times a second by a thread of the communicator, beside run().
  virtual void tend(const std::function<std::string()>& own_state) = 0;
  /// For the verdict on a stalled call: the states of all ranks, by rank; "does not answer" for
  /// those that say nothing before the deadline (own: empty). Beside run().
  virtual std::vector<std::string> whereabouts(TimePoint deadline) = 0;
};

// The engines. What a Group must be like: one local replica, and a transport of its size and rank;
// else kInvalidArgument.

/// The rank of a transport that has host_memory(); `name` is "canonical" or "auto". Reductions
/// along the canonical tree: each rank combines small buffers for itself; buffers in HostMemory (of
/// threads all) are combined where they are, a part by each rank; other all_reduces go through
/// windows step by step; everything else by messages.
std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport,
                                                std::string_view name);

/// In what pieces calls are made where messages go between processes: with what stands before and
/// behind it, a message of two packets of a loopback device. Measured with 2 ranks at 4 MiB: 1,100
/// us; 128 KiB 1,190, 64 KiB 1,250, 256 KiB 1,310.
inline constexpr std::size_t kNetworkSegmentBytes = 2 * 65280;
/// The names that message_engine() knows: the algorithms, and "auto".
std::vector<std::string> message_algorithms();
/// The rank of `transport`, by messages. Throws kNotFound listing the names.
///
/// Every message of a call is received within it. Each rank sends its header (208 bytes) to its
/// right neighbour, with its first message where that goes there, and returns only when it knows
/// that all headers are equal. A rank that fails aborts the transport, so that the others fail with
/// the same reason, in all groups. At its deadline a rank asks for up to 300 ms where the others
/// are, to name those that did not come.
std::unique_ptr<CollectiveEngine> message_engine(std::shared_ptr<Transport> transport,
                                                 std::string_view algorithm);

/// The rank group.first_rank by MPI's collectives; every rank is another process of one MPI job
/// (MPI_COMM_WORLD), in any order. Collective. Ranks meet as in MeetingEngine; the data goes by a
/// non-blocking MPI collective on the caller's memory. When a call is ended early although all
/// ranks came, MPI gets 2 s more to finish with that memory; if it does not, this process calls MPI
/// no more. Throws kUnimplemented in a build without MPI, in a process that no MPI launcher
/// started, and for ranks that share a process; kFailedPrecondition after MPI_Finalize, or when the
/// program initialised MPI without threads.
std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline);

/// The rank group.first_rank of the operation that `spec` names. Ranks meet as in MeetingEngine;
/// what the operation does not provide() or support is done with messages, and so is all_to_all, of
/// which a rank knows its own counts alone. The operation gets an empty part of group.store. It
/// must span processes (kUnimplemented) and end its calls on abort(), which tend() makes for other
/// ranks. Throws what making the operation throws.
std::unique_ptr<CollectiveEngine> ops_engine(const CrossDeviceOpsSpec& spec, const Group& group,
                                             TimePoint deadline);

}  // namespace tutti::internal
