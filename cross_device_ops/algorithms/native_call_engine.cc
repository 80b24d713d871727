// Base class of engines that use messages only to compare headers, and move data without them.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/native_call_engine.h"

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/collective_header.h"

namespace tutti::internal {

NativeCallEngine::NativeCallEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages)
    : link_(std::move(link)), messages_(std::move(messages)) {}

void NativeCallEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                           TimePoint deadline) {
  throw_if_closed();
  try {
    if (!is_native(call, header)) return messages_->run(call, header, deadline);
    run_native(call, header, deadline);
    carry_out(call, header, deadline);
  } catch (const Error& error) {
    close(error);
    throw;
  }
}

void NativeCallEngine::run_native(const CollectiveCall& call, const CollectiveHeader& header,
                                  TimePoint deadline) {
  CollectiveCall meeting;
  meeting.collective = Collective::kBarrier;
  try {
    messages_->run(meeting, header, deadline);
  } catch (const Error& error) {
    // If the calls of two ranks differ, no rank begins a native call.
    if (error.code() != ErrorCode::kInvalidArgument) missed(call);
    throw;
  }
}

void NativeCallEngine::answer_state_queries(const std::function<std::string()>& own_state) {
  messages_->answer_state_queries(own_state);
  const std::optional<Error> reason = failure_of_peer();
  // A peer that exited may simply have finished, so only kAborted counts as an abort.
  if (!reason || reason->code() != ErrorCode::kAborted) return;
  {
    MutexLock lock(mutex_);
    told_ = reason;
    is_closed_ = true;
  }
  stop(*reason);
}

void NativeCallEngine::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed_) closed_ = reason;
    is_closed_ = true;
  }
  messages_->abort(reason);
  stop(reason);
}

void NativeCallEngine::throw_if_closed() {
  MutexLock lock(mutex_);
  if (closed_) throw *closed_;
  if (told_) throw as_it_was(*told_);
}

void require_one_replica(std::string_view who, const Group& group) {
  if (group.transport && group.local_devices.size() == 1 &&
      group.world_size == group.transport->size() && group.first_rank == group.transport->rank()) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, who,
       ": expected a communicator's group, with one local device ",
       "and a transport of the same size and rank, got ", group.local_devices.size(),
       " devices and rank ", group.first_rank, " of ", group.world_size,
       group.transport ? "" : " without a transport");
}

}  // namespace tutti::internal
