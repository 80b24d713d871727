// Collective calls in MPI's words.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/mpi/mpi_call.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "tutti/cross_device_ops/canonical_tree.h"

namespace tutti::internal {
namespace {

template <ReduceOp kOp, DType kType>
void combine_for_mpi(void* in, void* in_out, int* length, MPI_Datatype*) {
  auto* const result = static_cast<std::byte*>(in_out);
  combine(kOp, kType, static_cast<const std::byte*>(in), result, result,
          static_cast<std::size_t>(*length));
}

MPI_Op commutative(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  check_mpi(MPI_Op_create(function, 1, &op), "MPI_Op_create");
  return op;
}

/// Made once, and left to MPI_Finalize.
struct OwnOps {
  MPI_Op min32 = commutative(combine_for_mpi<ReduceOp::kMin, DType::kFloat32>);
  MPI_Op max32 = commutative(combine_for_mpi<ReduceOp::kMax, DType::kFloat32>);
  MPI_Op min64 = commutative(combine_for_mpi<ReduceOp::kMin, DType::kFloat64>);
  MPI_Op max64 = commutative(combine_for_mpi<ReduceOp::kMax, DType::kFloat64>);
  MPI_Op sum8 = commutative(combine_for_mpi<ReduceOp::kSum, DType::kUInt8>);
  MPI_Op product8 = commutative(combine_for_mpi<ReduceOp::kProduct, DType::kUInt8>);
};

const OwnOps& own_ops() {
  static const OwnOps ops;
  return ops;
}

/// For collectives that combine: the number itself; bool is a byte of 0 or 1. Not for 16-bit types,
/// which communicators give as float32.
MPI_Datatype mpi_number(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kUInt8:
    case DType::kBool:
      return MPI_UINT8_T;
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  fail(ErrorCode::kInternal, "mpi: has no reductions of ", dtype);
}

/// For those that copy, at any alignment.
MPI_Datatype mpi_bytes(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

/// SUM, PRODUCT, MIN or MAX: MPI's own, but for MIN and MAX of floating types, where MPI leaves
/// open what becomes of a NaN (here it wins), and sums of bytes, which Open MPI 4 saturates on
/// processors with AVX (here they wrap around).
MPI_Op mpi_op(ReduceOp op, DType dtype) {
  const bool wide = dtype == DType::kFloat64;
  switch (op) {
    case ReduceOp::kSum:
      return dtype == DType::kUInt8 ? own_ops().sum8 : MPI_SUM;
    case ReduceOp::kProduct:
      return dtype == DType::kUInt8 ? own_ops().product8 : MPI_PROD;
    case ReduceOp::kMin:
      if (!is_floating(dtype)) return MPI_MIN;
      return wide ? own_ops().min64 : own_ops().min32;
    case ReduceOp::kMax:
      if (!is_floating(dtype)) return MPI_MAX;
      return wide ? own_ops().max64 : own_ops().max32;
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "mpi: MEAN is SUM and a division; the caller divides");
}

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
