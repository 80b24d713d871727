// Carries out collectives for one rank: with shared memory, with messages, or with a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/transport.h"
#include "tutti/tensor/buffer.h"

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

/// Carries out an all_reduce of several buffers as one of a buffer that holds them one after the
/// other, by run(flat): for engines that pay for each message or call.
template <class Run>
void run_packed(const CollectiveCall& call, const Run& run) {
  const BufferRef packed = BufferRef::allocate(call.count * size_of(call.dtype));
  std::byte* place = packed->data();
  for (const ConstElements& input : call.inputs) {
    if (input.count > 0) std::memcpy(place, input.data, input.num_bytes());
    place += input.num_bytes();
  }
  const Elements all(packed->data(), call.count, call.dtype);
  const ConstElements all_input = all;
  CollectiveCall flat = call;
  flat.inputs = {&all_input, 1};
  flat.outputs = {&all, 1};
  run(flat);
  place = packed->data();
  for (const Elements& output : call.outputs) {
    if (output.count > 0) std::memcpy(output.data, place, output.num_bytes());
    place += output.num_bytes();
  }
}

}  // namespace tutti::internal
