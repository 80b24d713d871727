// Collective calls in MPI's words.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_call.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "tutti/cross_device_ops/mpi/mpi_elements.h"

namespace tutti::internal {
namespace {

/// MPI wants a call to be in place on all ranks or on none, and chooses its algorithm by that; ours
/// may differ, and a rank that stands in knows nothing of the others. So every call is in place.
void bring(const ConstElements& input, std::byte* place) {
  if (input.data != place && input.count > 0) std::memcpy(place, input.data, input.num_bytes());
}

/// The counts, and where each part begins.
void set_parts(std::span<const std::size_t> parts, std::vector<int>& counts,
               std::vector<int>& offsets) {
  std::size_t sum = 0;
  for (const std::size_t part : parts) {
    counts.push_back(static_cast<int>(part));
    offsets.push_back(static_cast<int>(sum));
    sum += part;
    if (sum <= INT_MAX) continue;
    fail(ErrorCode::kOutOfRange, "mpi: the parts of one call; expected at most ", INT_MAX,
         " elements in all, got ", sum, " and more; try several calls");
  }
}

bool lies_within(const Elements& part, const ConstElements& whole) {
  const std::less<const std::byte*> before;
  return !before(part.data, whole.data) && before(part.data, whole.data + whole.num_bytes());
}

}  // namespace

MpiCall::MpiCall(const CollectiveCall& call, MpiRuntime& runtime, MPI_Comm comm, int rank)
    : call_(call), runtime_(runtime), comm_(comm), rank_(rank) {
  if (!call.inputs.empty()) input_ = call.inputs[0];
  if (!call.outputs.empty()) output_ = call.outputs[0];
}

void MpiCall::start() {
  const MpiRuntime::Calls guard(runtime_);
  const int count = static_cast<int>(call_.count);
  switch (call_.collective) {
    case Collective::kAllReduce:
      bring(input_, output_.data);
      return check_mpi(MPI_Iallreduce(MPI_IN_PLACE, output_.data, count, mpi_number(call_.dtype),
                                      mpi_op(call_.op, call_.dtype), comm_, &request_),
                       "MPI_Iallreduce");
    case Collective::kReduce: {
      const bool is_root = rank_ == call_.root;
      if (is_root) bring(input_, output_.data);
      return check_mpi(MPI_Ireduce(is_root ? MPI_IN_PLACE : input_.data,
                                   is_root ? output_.data : nullptr, count, mpi_number(call_.dtype),
                                   mpi_op(call_.op, call_.dtype), call_.root, comm_, &request_),
                       "MPI_Ireduce");
    }
    case Collective::kBroadcast:
      return check_mpi(
          MPI_Ibcast(output_.data, count, mpi_bytes(call_.dtype), call_.root, comm_, &request_),
          "MPI_Ibcast");
    case Collective::kAllGather:
      return start_all_gather();
    case Collective::kReduceScatter:
      return start_reduce_scatter();
    case Collective::kAllToAll:
      return start_all_to_all();
    case Collective::kBarrier:
      break;
  }
  TUTTI_CHECK(false, "mpi: ", to_string(call_.collective), " is done with messages");
}

void MpiCall::start_all_gather() {
  set_parts(call_.counts, counts_, offsets_);
  const std::size_t own = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(rank_)]);
  bring(input_, output_.data + own * size_of(call_.dtype));
  const MPI_Datatype type = mpi_bytes(call_.dtype);
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, output_.data, counts_.data(), offsets_.data(),
                            type, comm_, &request_),
            "MPI_Iallgatherv");
}

void MpiCall::start_reduce_scatter() {
  set_parts(call_.counts, counts_, offsets_);
  std::byte* result = output_.data;
  if (lies_within(output_, input_)) {
    result_ = BufferRef::allocate(output_.num_bytes());
    result = result_->data();
  }
  check_mpi(MPI_Ireduce_scatter(input_.data, result, counts_.data(), mpi_number(call_.dtype),
                                mpi_op(call_.op, call_.dtype), comm_, &request_),
            "MPI_Ireduce_scatter");
}

void MpiCall::start_all_to_all() {
  set_parts(call_.counts, counts_, offsets_);
  set_parts(call_.receive_counts, receive_counts_, receive_offsets_);
  const MPI_Datatype type = mpi_bytes(call_.dtype);
  check_mpi(MPI_Ialltoallv(input_.data, counts_.data(), offsets_.data(), type, output_.data,
                           receive_counts_.data(), receive_offsets_.data(), type, comm_, &request_),
            "MPI_Ialltoallv");
}

bool MpiCall::test() {
  if (ended_) return true;
  {
    const MpiRuntime::Calls guard(runtime_);
    int flag = 0;
    check_mpi(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    if (flag == 0) return false;
  }
  ended_ = true;
  finish();
  return true;
}

void MpiCall::finish() {
  if (result_ && output_.count > 0) {
    std::memcpy(output_.data, result_->data(), output_.num_bytes());
  }
}

StandIn::StandIn(const CollectiveCall& call, MpiRuntime& runtime, MPI_Comm comm, int rank)
    : call_(call),
      counts_(call.counts.begin(), call.counts.end()),
      receive_counts_(call.receive_counts.begin(), call.receive_counts.end()) {
  const auto memory = [&](const auto& list, BufferRef& kept) {
    std::size_t count = 0;
    for (const auto& elements : list) count += elements.count;
    kept = BufferRef::allocate(std::max<std::size_t>(1, count * size_of(call.dtype)));
    std::byte* place = kept->data();
    for (const auto& elements : list) {
      if (elements.count > 0) std::memcpy(place, elements.data, elements.num_bytes());
      place += elements.num_bytes();
    }
    return Elements(kept->data(), count, call.dtype);
  };
  input_ = memory(call.inputs, input_memory_);
  output_ = memory(call.outputs, output_memory_);
  if (!call.inputs.empty()) call_.inputs = {&input_, 1};
  if (!call.outputs.empty()) call_.outputs = {&output_, 1};
  call_.counts = counts_;
  call_.receive_counts = receive_counts_;
  running_.emplace(call_, runtime, comm, rank);
}

}  // namespace tutti::internal
