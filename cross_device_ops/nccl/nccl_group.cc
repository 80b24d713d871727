// The NCCL communicators of a group's local ranks.
// SPDX-License-Identifier: Apache-2.0
//
// All communicators have blocking = 0: a call returns ncclInProgress where NCCL goes on by a thread
// of its own, and nothing may be asked of that communicator until ncclCommGetAsyncError says that
// it is done. That is what makes a deadline, and abort() beside a launch, possible.
#include "tutti/cross_device_ops/nccl/nccl_group.h"

#include <cstring>
#include <optional>
#include <string>

#include "tutti/core/logging.h"
#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti::internal {
namespace {

constexpr auto kPause = std::chrono::microseconds(50);
constexpr int kPollsBeforePause = 200;  // a launch takes tens of microseconds
constexpr auto kTimeToFinalize = std::chrono::seconds(5);
constexpr std::string_view kIdKey = "nccl/unique_id";

bool is_fine(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

ErrorCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ErrorCode::kInvalidArgument;
    case ncclSystemError:
    case ncclRemoteError:
      return ErrorCode::kUnavailable;
    default:
      return ErrorCode::kInternal;
  }
}

/// The stream; afterwards its GPU is the calling thread's current one, for every call of a context
/// selects its own.
cudaStream_t stream_of(Device device) {
  return GpuDevice::of(device).with_context([](DeviceContext& context) {
    context.record(StreamId::kCommunication);
    return static_cast<cudaStream_t>(context.native_stream(StreamId::kCommunication));
  });
}

Mutex& launch_mutex() {
  static Mutex mutex;
  return mutex;
}

}  // namespace

NcclGroup::NcclGroup(const NcclFunctions& functions, const Group& group, Duration timeout)
    : nccl_(functions),
      group_(group),
      timeout_(timeout),
      comms_(group.local_devices.size(), nullptr) {
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout);
  initialize(deadline);
  wait_for_host_work("making communicators", deadline);
  log_debug(concat("nccl: communicators of ", group.world_size, " ranks, here ",
                   join(group.local_devices)));
}

NcclGroup::~NcclGroup() {
  MutexLock lock(mutex_);
  if (reason_ || finalize()) return;
  close(Error(ErrorCode::kAborted, "nccl: the group was destroyed"));
}

/// Whether all communicators ended in time.
bool NcclGroup::finalize() {
  for (const ncclComm_t comm : comms_) {
    if (!is_fine(nccl_.comm_finalize(comm))) return false;
  }
  const TimePoint deadline = deadline_after(Clock::system().now(), kTimeToFinalize);
  for (const ncclComm_t comm : comms_) {
    ncclResult_t state = ncclInProgress;
    while (nccl_.comm_get_async_error(comm, &state) == ncclSuccess && state == ncclInProgress) {
      if (Clock::system().now() > deadline) return false;
      Clock::system().sleep_for(kPause);
    }
    if (state != ncclSuccess) return false;
  }
  for (const ncclComm_t comm : comms_) nccl_.comm_destroy(comm);
  comms_.clear();
  return true;
}

std::string NcclGroup::rank_and_device(std::size_t local) const {
  return concat("rank ", group_.first_rank + static_cast<int>(local), " (",
                group_.local_devices[local], ")");
}

ncclUniqueId NcclGroup::agree_on_id(TimePoint deadline) {
  ncclUniqueId id{};
  if (!spans_processes() || group_.first_rank == 0) {
    MutexLock lock(mutex_);
    require(nccl_.get_unique_id(&id), 0, "making an id");
  }
  if (!spans_processes()) return id;
  if (!group_.store) {
    fail(ErrorCode::kInvalidArgument,
         "nccl: ranks in several processes find each other by a key "
         "value store; expected one in Group::store, got none");
  }
  if (group_.first_rank == 0) {
    group_.store->set(kIdKey, {id.internal, sizeof(id.internal)});
    return id;
  }
  const std::string value = group_.store->wait(kIdKey, deadline);
  if (value.size() != sizeof(id.internal)) {
    fail(ErrorCode::kDataLoss, "nccl: the id in the store; expected ", sizeof(id.internal),
         " bytes, got ", value.size());
  }
  std::memcpy(id.internal, value.data(), value.size());
  return id;
}

void NcclGroup::initialize(TimePoint deadline) {
  const ncclUniqueId id = agree_on_id(deadline);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  MutexLock lock(mutex_);
  require(nccl_.group_start(), 0, "making communicators");
  for (std::size_t r = 0; r < comms_.size(); ++r) {
    stream_of(group_.local_devices[r]);
    const int rank = group_.first_rank + static_cast<int>(r);
    const ncclResult_t result =
        nccl_.comm_init_rank_config(&comms_[r], group_.world_size, id, rank, &config);
    if (is_fine(result)) continue;
    nccl_.group_end();
    require(result, r, "making communicators");
  }
  require(nccl_.group_end(), 0, "making communicators");
}

void NcclGroup::launch(std::string_view what, const Issue& issue) {
  // Groups that share GPUs must come to their streams in one order, or they wait for each other.
  std::optional<MutexLock> turn;
  if (!spans_processes()) turn.emplace(launch_mutex());
  std::vector<cudaStream_t> streams;
  for (const Device& device : group_.local_devices) streams.push_back(stream_of(device));
  {
    MutexLock lock(mutex_);
    throw_if_closed();
    is_in_progress(what);  // an error since the last launch
    require(nccl_.group_start(), 0, what);
    for (std::size_t r = 0; r < streams.size(); ++r) {
      const ncclResult_t result = issue(r, comms_[r], streams[r]);
      if (is_fine(result)) continue;
      nccl_.group_end();
      require(result, r, what);
    }
    require(nccl_.group_end(), 0, what);
  }
  wait_for_host_work(what, deadline_after(Clock::system().now(), timeout_));
}

void NcclGroup::wait_for_host_work(std::string_view what, TimePoint deadline) {
  for (int polls = 0;; ++polls) {
    {
      MutexLock lock(mutex_);
      throw_if_closed();
      if (!is_in_progress(what)) return;
      if (Clock::system().now() > deadline) {
        const Error late(ErrorCode::kDeadlineExceeded,
                         concat("nccl: ", rank_and_device(0), ": ", what, " of ", group_.world_size,
                                " ranks took longer than ", timeout_ / std::chrono::milliseconds(1),
                                " ms; expected all ranks to take part; try a longer timeout, or "
                                "NCCL_DEBUG=INFO for what NCCL waits for"));
        close(late);
        throw late;
      }
    }
    if (polls > kPollsBeforePause) Clock::system().sleep_for(kPause);
  }
}

bool NcclGroup::is_in_progress(std::string_view what) {
  bool any = false;
  for (std::size_t r = 0; r < comms_.size(); ++r) {
    ncclResult_t state = ncclSuccess;
    require(nccl_.comm_get_async_error(comms_[r], &state), r, what);
    require(state, r, what);
    any = any || state == ncclInProgress;
  }
  return any;
}

void NcclGroup::require(ncclResult_t result, std::size_t local, std::string_view what) {
  if (is_fine(result)) return;
  const char* const detail = nccl_.get_last_error(comms_[local]);
  const Error error(code_of(result), concat("nccl: ", rank_and_device(local), ": ", what, ": ",
                                            nccl_.get_error_string(result), ": ",
                                            detail && *detail ? detail : "no further word"));
  close(error);
  throw error;
}

void NcclGroup::throw_if_closed() {
  if (reason_) throw *reason_;
}

void NcclGroup::close(const Error& reason) noexcept {
  if (reason_) return;
  reason_ = std::make_unique<Error>(reason);
  for (ncclComm_t& comm : comms_) {
    if (comm) nccl_.comm_abort(comm);
    comm = nullptr;
  }
}

void NcclGroup::abort(const Error& reason) noexcept {
  MutexLock lock(mutex_);
  close(Error(ErrorCode::kAborted, reason.message()));
}

}  // namespace tutti::internal
