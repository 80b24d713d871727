// Engines that carry out one rank's collectives: with shared memory, messages or a plugin.
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

/// Implementation behind a Communicator. Every engine compares the headers of all ranks: if two
/// differ, run() throws kInvalidArgument on every rank, with mismatch_message() of both. Not
/// thread-safe, but abort() may be called from any thread.
class CollectiveEngine {
 public:
  virtual ~CollectiveEngine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the algorithm's registered name.
  virtual std::string_view name() const = 0;
  virtual bool supports(Collective collective, ReduceOp op, DType dtype) const = 0;
  virtual Determinism determinism() const = 0;
  virtual double max_relative_error() const { return 0.0; }
  /// Returns true if run() accepts an all_reduce of several buffers; otherwise the caller packs
  /// them.
  virtual bool takes_lists() const { return false; }
  /// Returns an allocator for buffers that run() accesses without a copy; nullptr if all memory is
  /// equally fast.
  virtual std::shared_ptr<BufferAllocator> allocator() { return nullptr; }

  /// Blocks until this rank's part is done. Throws kInvalidArgument (for a mismatch),
  /// kDeadlineExceeded naming the ranks that did not join, kAborted or kUnavailable. After any of
  /// these errors, the group is unusable, and later calls throw the same error.
  virtual void run(const CollectiveCall& call, const CollectiveHeader& header,
                   TimePoint deadline) = 0;
  /// Makes the running call and all later calls of the group fail on all ranks, with kAborted and
  /// the reason.
  virtual void abort(const Error& reason) noexcept = 0;

  /// Returns the reason why a call that continues on a GPU after run() cannot finish, or nullopt:
  /// kAborted, or kUnavailable naming a rank that exited (possibly after finishing normally). After
  /// the first call, the thread that calls answer_state_queries() may also call this function
  /// during run().
  virtual std::optional<Error> failure_of_peer() { return std::nullopt; }

  /// Returns an engine for a subgroup, whose calls are ordered independently of this engine's
  /// calls. All members of `ranks` (increasing rank numbers of this group, including this rank)
  /// must call this function. `number` counts the groups created from this group, starting at 1,
  /// and is equal on all members.
  virtual std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                                     std::uint32_t number) = 0;

  /// Answers state queries from peers with `own_state()`: "has waited 10.2 s in broadcast(...) #3
  /// at a.cc:3", "is in no collective; its last one was ...". Never blocks. Called about ten times
  /// a second by a thread of the communicator, even during run().
  virtual void answer_state_queries(const std::function<std::string()>& own_state) = 0;
  /// Returns the state of each rank, indexed by rank, for the report on a stalled call: "does not
  /// answer" for ranks that are silent until the deadline, empty for this rank. May be called
  /// during run().
  virtual std::vector<std::string> states_of_ranks(TimePoint deadline) = 0;
};

// Functions that create engines. Those that take a Group throw kInvalidArgument unless the group
// has one local device and a transport of the group's size and rank.

/// Returns the "canonical" engine for a rank whose transport has host_memory(). Reductions follow
/// the canonical tree. Each rank combines small buffers by itself. Buffers in HostMemory (for
/// threads: all buffers) are combined in place, and each rank processes one part. An all_reduce of
/// other buffers copies them through shared windows in steps; all other calls use messages.
std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport);

/// Segment size for calls whose messages cross processes. Including the bytes that frame it, a
/// segment fills two packets on the loopback device. Measured with 2 ranks at 4 MiB: 1,100 us; with
/// segments of 64 KiB, 1,250 us; 128 KiB, 1,190 us; 256 KiB, 1,310 us.
inline constexpr std::size_t kNetworkSegmentBytes = 2 * 65280;
/// Returns the names that message_engine() accepts.
std::vector<std::string> message_algorithms();
/// Returns an engine that uses the messages of `transport`. Throws kNotFound, listing the names,
/// for an unknown algorithm.
///
/// Every message of a call is received within the call. Each rank sends its header (208 bytes) to
/// its right neighbour, together with its first message if that has the same receiver. A call ends
/// only when the rank knows that all headers are equal. A rank that fails aborts the transport, so
/// that all groups fail with the same reason on the other ranks. At its deadline, a rank queries
/// the states of the other ranks for up to 300 ms, to name those that did not join.
std::unique_ptr<CollectiveEngine> message_engine(std::shared_ptr<Transport> transport,
                                                 std::string_view algorithm);

/// Returns the engine that performs the collectives of rank group.first_rank through MPI. Each rank
/// is a separate process of one MPI job; the order of ranks may differ from MPI_COMM_WORLD's.
/// Collective. Ranks synchronise as in NativeCallEngine; a non-blocking MPI collective then works
/// on the caller's memory. If a call ends early after all ranks have joined, MPI gets 2 more
/// seconds to stop using that memory; if it does not stop, this process makes no further MPI calls.
/// Throws kUnimplemented in a build without MPI, in a process that no MPI launcher started, and for
/// ranks that share a process; kFailedPrecondition after MPI_Finalize, or if the program
/// initialised MPI without thread support.
std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline);

/// Returns the engine of rank group.first_rank with the operation that `spec` names. Ranks
/// synchronise as in NativeCallEngine. Calls that the operation does not provide() or support use
/// messages, as does all_to_all, in which a rank knows only its own counts. The operation receives
/// a new, empty part of group.store. It must end its calls on abort(), which answer_state_queries()
/// calls when another rank aborts. Throws kUnimplemented if the operation does not span processes,
/// and the same errors as make_cross_device_ops().
std::unique_ptr<CollectiveEngine> ops_engine(const CrossDeviceOpsSpec& spec, const Group& group,
                                             TimePoint deadline);

}  // namespace tutti::internal
