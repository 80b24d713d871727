// The NCCL communicators of a group's local ranks.
// SPDX-License-Identifier: Apache-2.0
//
// All communicators have blocking = 0: a call returns ncclInProgress where NCCL goes on by a thread
// of its own, and nothing may be asked of that communicator until ncclCommGetAsyncError says that
// it is done. That is what makes a deadline, and abort() beside a launch, possible.
#include "cross_device_ops/nccl/nccl_group.h"

#include <algorithm>
#include <cstring>

#include "tensor/gpu/gpu_device.h"
#include "tensor/gpu/graph_memory.h"
#include "tutti/core/logging.h"

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

std::shared_ptr<DeviceEvent> mark(Device device) {
  return GpuDevice::of(device).with_context(
      [](DeviceContext& context) { return context.record(StreamId::kCommunication); });
}

/// Makes the device's GPU the calling thread's current one: every call of a context selects its
/// own.
void select_gpu(Device device) { mark(device); }

cudaStream_t stream_of(Device device) {
  return GpuDevice::of(device).with_context([](DeviceContext& context) {
    return static_cast<cudaStream_t>(context.native_stream(StreamId::kCommunication));
  });
}

bool is_done(const std::shared_ptr<DeviceEvent>& event) { return event->is_done(); }

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
  if (gave_up_) {
    log_warning(concat("nccl: ", rank_and_device(0), ": a collective had not ended when its group ",
                       "was destroyed; what it would have written is lost"));
  }
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
    select_gpu(group_.local_devices[r]);
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
  Events began;
  for (const Device& device : group_.local_devices) {
    streams.push_back(stream_of(device));
    began.push_back(mark(device));
  }
  {
    MutexLock lock(mutex_);
    throw_if_closed();
    drop_done();
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
  note(what, std::move(began));
}

bool NcclGroup::is_capturing() const {
  return GraphMemory::current(group_.local_devices.front()) != nullptr;
}

/// NCCL has put all of it into the streams.
void NcclGroup::note(std::string_view what, Events began) {
  if (is_capturing()) {
    MutexLock lock(mutex_);
    captured_ = what;
    return;
  }
  Events ended;
  for (const Device& device : group_.local_devices) ended.push_back(mark(device));
  MutexLock lock(mutex_);
  launched_.push_back({std::string(what), std::move(began), std::move(ended)});
}

void NcclGroup::check_graph() {
  MutexLock lock(mutex_);
  if (captured_.empty()) return;
  throw_if_closed();
  is_in_progress(concat("a captured step with ", captured_));
}

void NcclGroup::note_graph(std::shared_ptr<DeviceEvent> began, std::shared_ptr<DeviceEvent> ended) {
  MutexLock lock(mutex_);
  if (captured_.empty()) return;
  drop_done();
  launched_.push_back({concat("a captured step with ", captured_), {began}, {ended}});
}

void NcclGroup::drop_done() {
  constexpr int kMost = 2;  // more than are added, so that few stay
  for (int i = 0; i < kMost && !launched_.empty(); ++i) {
    if (!std::ranges::all_of(launched_.front().ended, is_done)) return;
    launched_.pop_front();
  }
}

bool NcclGroup::is_pending() {
  MutexLock lock(mutex_);
  drop_done();
  return gave_up_ || !launched_.empty();
}

void NcclGroup::check() {
  MutexLock lock(mutex_);
  if (reason_) {
    if (gave_up_) throw *reason_;
    return;
  }
  drop_done();
  if (launched_.empty()) return;
  is_in_progress(launched_.front().what);
  check_duration(launched_.front());
}

void NcclGroup::check_duration(Launched& launched) {
  const auto late = std::ranges::find_if_not(launched.ended, is_done);
  if (late == launched.ended.end()) return;
  const auto local = static_cast<std::size_t>(late - launched.ended.begin());
  if (!is_done(launched.began[local])) return;
  const TimePoint now = Clock::system().now();
  if (!launched.running_since) launched.running_since = now;
  if (now - *launched.running_since <= timeout_) return;
  close(Error(
      ErrorCode::kDeadlineExceeded,
      concat("nccl: ", rank_and_device(local), ": ", launched.what, " of ", group_.world_size,
             " ranks has been running for longer than ", timeout_ / std::chrono::milliseconds(1),
             " ms; expected all ranks to take part; try a longer timeout, or look for a "
             "rank that has ended")));
  throw *reason_;
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
  try {
    gave_up_ = !std::ranges::all_of(launched_, [](const Launched& launched) {
      return std::ranges::all_of(launched.ended, is_done);
    });
  } catch (const std::exception&) {  // a GPU that has failed
    gave_up_ = true;
  }
  launched_.clear();
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
