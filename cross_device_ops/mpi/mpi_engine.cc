// Engine that exchanges headers as messages and moves data with MPI.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/collective_engine.h"

#include <mpi.h>
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "cross_device_ops/algorithms/native_call_engine.h"
#include "cross_device_ops/mpi/mpi_runtime.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/tensor/buffer.h"

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

/// MPI reductions defined by tutti. Created once; MPI_Finalize frees them.
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

/// Returns the numeric type for collectives that combine values; bool is a byte with the value 0 or
/// 1. Throws for 16-bit types, which communicators pass as float32.
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
  fail(ErrorCode::kInternal, "mpi: expected a type that supports reductions, got ", dtype);
}

/// Returns the type for collectives that only copy values; the values may have any alignment.
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

/// Returns SUM, PRODUCT, MIN or MAX. These are MPI's own operations with two exceptions: MIN and
/// MAX of floating-point types, for which MPI does not define the result with a NaN (here it is
/// NaN), and sums and products of bytes, which wrap around here (Open MPI 4 saturates sums on
/// processors with AVX).
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
  fail(ErrorCode::kInternal, "mpi: expected SUM, got MEAN; divide the sum instead");
}

/// Copies the input to `place`, the memory of the output. MPI requires a call to be in place on all
/// ranks or on none. Callers on different ranks may choose differently, and a rank that makes a
/// call on copies does not know their choices, so every call is made in place.
void stage_input(const ConstElements& input, std::byte* place) {
  if (input.data != place && input.count > 0) std::memcpy(place, input.data, input.num_bytes());
}

/// Converts the lengths of parts to MPI's type and computes the offset of each part.
void set_parts(std::span<const std::size_t> parts, std::vector<int>& counts,
               std::vector<int>& offsets) {
  std::size_t sum = 0;
  for (const std::size_t part : parts) {
    counts.push_back(static_cast<int>(part));
    offsets.push_back(static_cast<int>(sum));
    sum += part;
    if (sum <= INT_MAX) continue;
    fail(ErrorCode::kOutOfRange, "mpi: one call has too many elements; expected at most ", INT_MAX,
         " elements in all, got ", sum, " or more; try several calls");
  }
}

bool lies_within(const Elements& part, const ConstElements& whole) {
  const std::less<const std::byte*> before;
  return !before(part.data, whole.data) && before(part.data, whole.data + whole.num_bytes());
}

/// A call with one input and one output. The call ends when test() returns true. Until then, MPI
/// uses the caller's memory, or, with `on_copies`, copies of it. A rank that fails after joining
/// makes a call on copies, because other ranks may have begun the call, and MPI ends it only after
/// all ranks have begun it. Not thread-safe.
class MpiCall {
 public:
  /// Begins the call. Throws kOutOfRange if the call has more elements than MPI can count.
  MpiCall(const CollectiveCall& call, MpiRuntime& runtime, MPI_Comm comm, int rank,
          bool on_copies = false)
      : runtime_(runtime), comm_(comm), rank_(rank) {
    if (!call.inputs.empty()) input_ = call.inputs[0];
    if (!call.outputs.empty()) output_ = call.outputs[0];
    if (on_copies) {
      input_ = copied(input_);
      output_ = copied(output_);
    }
    start(call);
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;
  /// Makes progress; returns true if the call has ended.
  bool test() {
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

 private:
  Elements copied(const ConstElements& elements) {
    const BufferRef& copy =
        copies_.emplace_back(BufferRef::allocate(std::max<std::size_t>(1, elements.num_bytes())));
    stage_input(elements, copy->data());
    return {copy->data(), elements.count, elements.dtype};
  }
  void start(const CollectiveCall& call) {
    const MpiRuntime::Calls guard(runtime_);
    const int count = static_cast<int>(call.count);
    switch (call.collective) {
      case Collective::kAllReduce:
        stage_input(input_, output_.data);
        return check_mpi(MPI_Iallreduce(MPI_IN_PLACE, output_.data, count, mpi_number(call.dtype),
                                        mpi_op(call.op, call.dtype), comm_, &request_),
                         "MPI_Iallreduce");
      case Collective::kReduce: {
        const bool is_root = rank_ == call.root;
        if (is_root) stage_input(input_, output_.data);
        return check_mpi(
            MPI_Ireduce(is_root ? MPI_IN_PLACE : input_.data, is_root ? output_.data : nullptr,
                        count, mpi_number(call.dtype), mpi_op(call.op, call.dtype), call.root,
                        comm_, &request_),
            "MPI_Ireduce");
      }
      case Collective::kBroadcast:
        return check_mpi(
            MPI_Ibcast(output_.data, count, mpi_bytes(call.dtype), call.root, comm_, &request_),
            "MPI_Ibcast");
      case Collective::kAllGather:
        return start_all_gather(call);
      case Collective::kReduceScatter:
        return start_reduce_scatter(call);
      case Collective::kAllToAll:
        return start_all_to_all(call);
      case Collective::kBarrier:
        break;
    }
    TUTTI_CHECK(false, "mpi: ", to_string(call.collective), " must use messages");
  }
  void start_reduce_scatter(const CollectiveCall& call) {
    set_parts(call.counts, counts_, offsets_);
    std::byte* result = output_.data;
    if (lies_within(output_, input_)) {
      result_ = BufferRef::allocate(output_.num_bytes());
      result = result_->data();
    }
    check_mpi(MPI_Ireduce_scatter(input_.data, result, counts_.data(), mpi_number(call.dtype),
                                  mpi_op(call.op, call.dtype), comm_, &request_),
              "MPI_Ireduce_scatter");
  }
  void start_all_gather(const CollectiveCall& call) {
    set_parts(call.counts, counts_, offsets_);
    const std::size_t own = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(rank_)]);
    stage_input(input_, output_.data + own * size_of(call.dtype));
    const MPI_Datatype type = mpi_bytes(call.dtype);
    check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, output_.data, counts_.data(), offsets_.data(),
                              type, comm_, &request_),
              "MPI_Iallgatherv");
  }
  void start_all_to_all(const CollectiveCall& call) {
    set_parts(call.counts, counts_, offsets_);
    set_parts(call.receive_counts, receive_counts_, receive_offsets_);
    const MPI_Datatype type = mpi_bytes(call.dtype);
    check_mpi(
        MPI_Ialltoallv(input_.data, counts_.data(), offsets_.data(), type, output_.data,
                       receive_counts_.data(), receive_offsets_.data(), type, comm_, &request_),
        "MPI_Ialltoallv");
  }
  void finish() {
    if (result_ && output_.count > 0) {
      std::memcpy(output_.data, result_->data(), output_.num_bytes());
    }
  }

  MpiRuntime& runtime_;
  const MPI_Comm comm_;
  const int rank_;
  ConstElements input_;
  Elements output_;
  // MPI reads these until the call has ended.
  std::vector<int> counts_, offsets_, receive_counts_, receive_offsets_;
  BufferRef result_;  // buffer for the result; used only if the output lies within the input
  std::vector<BufferRef> copies_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool ended_ = false;
};

using durations::kLastWords;
using durations::kLinger;

// Tags for creating MPI groups: Open MPI sends messages with such a tag on the communicator that
// the transport uses. The transport's own tags are lower. Every MPI implementation supports tags up
// to 32767.
constexpr int kFirstTag = 1000;
constexpr int kNumTags = 32767 - kFirstTag;

/// Data that ranks exchange when they form a group.
struct Introduction {
  std::int32_t process = 0;  // rank in MPI_COMM_WORLD
  std::int32_t tag = 0;      // only the tag from rank 0 is used
};

std::vector<Introduction> introduce(const RankLink& link, int process, TimePoint deadline) {
  static std::atomic<int> groups_made{0};
  const int tag = kFirstTag + (process * 31 + groups_made.fetch_add(1)) % kNumTags;
  return link.exchange(Purpose::kIntroduction, Introduction{process, tag}, deadline,
                       concat("mpi: rank ", link.rank));
}

void require_own_processes(const std::vector<Introduction>& all) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t s = 0; s < r; ++s) {
      if (all[s].process != all[r].process) continue;
      fail(ErrorCode::kUnimplemented, "mpi: ranks ", s, " and ", r, " are both MPI process ",
           all[r].process,
           "; expected a separate process for each rank; use 'canonical' between threads");
    }
  }
}

/// Creates an MPI communicator for these ranks, numbered as in `ranks`. Collective: blocks until
/// all ranks have called it.
MPI_Comm make_comm(MpiRuntime& runtime, const std::vector<Introduction>& ranks) {
  std::vector<int> processes;
  for (const Introduction& rank : ranks) processes.push_back(rank.process);
  const MpiRuntime::Calls guard(runtime);
  MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(runtime.comm(), &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(processes.size()), processes.data(), &members),
            "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(runtime.comm(), members, ranks[0].tag, &comm),
            "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return comm;
}

class MpiEngine final : public NativeCallEngine {
 public:
  MpiEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages, TimePoint deadline)
      : NativeCallEngine(std::move(link), std::move(messages)), runtime_(MpiRuntime::get()) {
    runtime_.require_usable();
    if (size() == 1) return;
    const std::vector<Introduction> ranks = introduce(link_, runtime_.rank(), deadline);
    require_own_processes(ranks);
    comm_ = make_comm(runtime_, ranks);
  }
  ~MpiEngine() override {
    // MPI may still need the communicator of an abandoned call.
    if (comm_ == MPI_COMM_NULL || is_closed() || !runtime_.is_usable()) return;
    const MpiRuntime::Calls guard(runtime_);
    MPI_Comm_free(&comm_);
  }

  std::string_view name() const override { return "mpi"; }
  /// Returns false for 16-bit numbers, which MPI lacks; the communicator passes them as float32.
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || (can_combine(op, dtype) && !is_half(dtype));
  }
  /// The MPI standard only recommends run-to-run determinism. Open MPI and MPICH provide it: they
  /// repeat the same steps for the same call.
  Determinism determinism() const override { return Determinism::kRunToRun; }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    const TimePoint deadline = deadline_after(Clock::system().now(), kDefaultTimeout);
    return std::make_unique<MpiEngine>(link_.subgroup(ranks, number),
                                       messages_->subgroup(ranks, number), deadline);
  }

 private:
  bool is_native(const CollectiveCall& call, const CollectiveHeader& header) override {
    runtime_.require_usable();
    if (size() == 1 || call.collective == Collective::kBarrier) return false;
    if (call.collective == Collective::kAllToAll) return true;
    return header.count > 0 && header.count <= INT_MAX;
  }
  // All ranks have joined, so each of them must start the MPI call, even after an error.
  void carry_out(const CollectiveCall& call, const CollectiveHeader& header,
                 TimePoint deadline) override {
    MpiCall running(call, runtime_, comm_, rank());
    bool ended = false;
    const auto ended_or_closed = [&] { return (ended = running.test()) || is_closed(); };
    const bool in_time = poll_until(deadline, ended_or_closed);
    if (ended) return;
    if (!in_time) {
      close(Error(ErrorCode::kDeadlineExceeded,
                  concat("rank ", rank(), ": ", header.describe(), ": all ", size(),
                         " ranks joined, but MPI did not finish the call before the deadline")));
    }
    give_up(running, header);
  }
  /// Makes the MPI call with copies of the buffers after this rank's barrier has failed, so that
  /// ranks that have passed the barrier can finish the call.
  void missed(const CollectiveCall& call) override {
    if (!runtime_.is_usable()) return;
    const auto stand_in = std::make_shared<MpiCall>(call, runtime_, comm_, rank(), true);
    runtime_.keep(stand_in);
    poll_until(deadline_after(Clock::system().now(), kLastWords), [&] { return stand_in->test(); });
  }
  void give_up(MpiCall& call, const CollectiveHeader& header) {
    const TimePoint end = deadline_after(Clock::system().now(), kLinger);
    if (!poll_until(end, [&] { return call.test(); })) {
      runtime_.retire(concat(header.describe(), " was abandoned, and MPI did not finish it within ",
                             kLinger / std::chrono::seconds(1), " more seconds"));
    }
    throw_if_closed();
  }

  MpiRuntime& runtime_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline) {
  require_one_replica("mpi", group);
  MpiRuntime::get();
  return std::make_unique<MpiEngine>(link_all(group.transport),
                                     message_engine(group.transport, "canonical"), deadline);
}

}  // namespace tutti::internal
