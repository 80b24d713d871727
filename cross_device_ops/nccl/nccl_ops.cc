// Implements the cross-device operation "nccl".
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/nccl/nccl_ops.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/gpu_ranks.h"
#include "cross_device_ops/nccl/nccl_functions.h"
#include "tensor/gpu/step_capture.h"
#include "tensor/gpu_device.h"
#include "tutti/core/clock.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

namespace {

constexpr auto kPause = std::chrono::microseconds(50);
constexpr std::string_view kIdKey = "nccl/unique_id";  // set by rank 0
constexpr int kPollsBeforePause =
    200;  // long enough for a launch, which takes tens of microseconds
constexpr auto kTimeToFinalize = std::chrono::seconds(5);

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

/// Makes the device's GPU current in the calling thread, as a side effect of recording an event.
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

/// Group of non-blocking NCCL communicators, one per local GPU. No call waits for a GPU. A call
/// that waits for NCCL's work on the host (connecting, launching) has a deadline and polls NCCL's
/// asynchronous errors. As the PeerWork of its devices, the group also polls these errors while a
/// thread waits for a GPU, and abandons work that exceeds the timeout. After any failure all
/// communicators are aborted, and later launches throw the same reason. If work was abandoned,
/// every wait for one of the GPUs throws this reason, too, until the group is destroyed.
/// Thread-safe, except that only one thread at a time may call launch().
class NcclGroup final : public PeerWork {
 public:
  /// Issues one rank's part of a collective, with this communicator and stream.
  using Issue =
      std::function<ncclResult_t(std::size_t local, ncclComm_t comm, cudaStream_t stream)>;

  /// Creates the communicators; ranks in different processes find each other through `group.store`.
  /// Throws kDeadlineExceeded if not all ranks join within `timeout`; other NCCL errors name the
  /// rank and the device.
  NcclGroup(const NcclFunctions& functions, const Group& group, Duration timeout)
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
  /// Waits at most a few seconds for launched work.
  ~NcclGroup() override {
    MutexLock lock(mutex_);
    if (reason_ || finalize()) return;
    close(Error(ErrorCode::kAborted, "nccl: the group was destroyed"));
    if (gave_up_) {
      log_warning(concat("nccl: ", rank_and_device(0),
                         ": a collective was still running when its group ",
                         "was destroyed; its results are lost"));
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Calls `issue` for every local rank, as one NCCL group, on the devices' communication streams.
  /// Returns when NCCL has launched everything. `what` is named in errors.
  void launch(std::string_view what, const Issue& issue) {
    // Groups that share GPUs must launch in the same order in all streams, or they deadlock.
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
      is_in_progress(what);  // throws any error that occurred since the last launch
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
  /// Ends running and later launches with kAborted and this reason.
  void abort(const Error& reason) noexcept {
    MutexLock lock(mutex_);
    close(Error(ErrorCode::kAborted, reason.message()));
  }

  bool is_pending() override {
    MutexLock lock(mutex_);
    drop_done();
    return gave_up_ || !launched_.empty();
  }
  void check() override {
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
  void check_graph() override {
    MutexLock lock(mutex_);
    if (captured_.empty()) return;
    throw_if_closed();
    is_in_progress(concat("a captured step with ", captured_));
  }
  void note_graph(std::shared_ptr<DeviceEvent> began, std::shared_ptr<DeviceEvent> ended) override {
    MutexLock lock(mutex_);
    if (captured_.empty()) return;
    drop_done();
    launched_.push_back({concat("a captured step with ", captured_), {began}, {ended}});
  }

 private:
  using Events = std::vector<std::shared_ptr<DeviceEvent>>;  // indexed by local rank
  /// A launched collective, with the events before and after it in each device's stream.
  struct Launched {
    std::string what;
    Events began, ended;
    std::optional<TimePoint> running_since = std::nullopt;  // when check() first found it running
  };

  bool spans_processes() const {
    return group_.world_size != static_cast<int>(group_.local_devices.size());
  }
  std::string rank_and_device(std::size_t local) const {
    return concat("rank ", group_.first_rank + static_cast<int>(local), " (",
                  group_.local_devices[local], ")");
  }
  ncclUniqueId agree_on_id(TimePoint deadline) {
    ncclUniqueId id{};
    std::optional<std::string> agreed;
    if (spans_processes()) {
      if (!group_.store) {
        fail(ErrorCode::kInvalidArgument,
             "nccl: expected a key-value store in Group::store, with which ranks in several "
             "processes find each other, got none");
      }
      agreed = group_.store.get(kNcclIdKey);
      if (!agreed && group_.first_rank > 0) agreed = group_.store.wait(kIdKey, deadline);
    }
    if (!agreed) {
      MutexLock lock(mutex_);
      require(nccl_.get_unique_id(&id), 0, "making an id");
      if (spans_processes()) group_.store.set(kIdKey, {id.internal, sizeof(id.internal)});
      return id;
    }
    if (agreed->size() != sizeof(id.internal)) {
      fail(ErrorCode::kDataLoss, "nccl: expected an id of ", sizeof(id.internal),
           " bytes in the store, got one of ", agreed->size(), " bytes");
    }
    std::memcpy(id.internal, agreed->data(), agreed->size());
    return id;
  }
  void initialize(TimePoint deadline) {
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
  void wait_for_host_work(std::string_view what, TimePoint deadline) {
    for (int polls = 0;; ++polls) {
      {
        MutexLock lock(mutex_);
        throw_if_closed();
        if (!is_in_progress(what)) return;
        if (Clock::system().now() > deadline) {
          const Error late(
              ErrorCode::kDeadlineExceeded,
              concat("nccl: ", rank_and_device(0), ": ", what, " of ", group_.world_size,
                     " ranks took longer than ", timeout_ / std::chrono::milliseconds(1),
                     " ms; expected all ranks to take part; try a longer timeout, or set "
                     "NCCL_DEBUG=INFO to see what NCCL waits for"));
          close(late);
          throw late;
        }
      }
      if (polls > kPollsBeforePause) Clock::system().sleep_for(kPause);
    }
  }
  /// Returns true while a communicator still has work to do on the host (ncclInProgress). Throws
  /// the asynchronous error of a communicator, if any.
  bool is_in_progress(std::string_view what) TUTTI_REQUIRES(mutex_) {
    bool any = false;
    for (std::size_t r = 0; r < comms_.size(); ++r) {
      ncclResult_t state = ncclSuccess;
      require(nccl_.comm_get_async_error(comms_[r], &state), r, what);
      require(state, r, what);
      any = any || state == ncclInProgress;
    }
    return any;
  }
  bool is_capturing() const {
    return GraphMemory::current(group_.local_devices.front()) != nullptr;
  }
  /// Records a launch after all of its work has been queued on the streams.
  void note(std::string_view what, Events began) {
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
  void drop_done() TUTTI_REQUIRES(mutex_) {
    // Each launch adds one entry and calls this function once; a call removes up to two entries.
    constexpr int kMost = 2;
    for (int i = 0; i < kMost && !launched_.empty(); ++i) {
      if (!std::ranges::all_of(launched_.front().ended, is_done)) return;
      launched_.pop_front();
    }
  }
  void check_duration(Launched& launched) TUTTI_REQUIRES(mutex_) {
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
               "rank that has exited")));
    throw *reason_;
  }
  void require(ncclResult_t result, std::size_t local, std::string_view what)
      TUTTI_REQUIRES(mutex_) {
    if (is_fine(result)) return;
    const char* const detail = nccl_.get_last_error(comms_[local]);
    const Error error(code_of(result), concat("nccl: ", rank_and_device(local), ": ", what, ": ",
                                              nccl_.get_error_string(result), ": ",
                                              detail && *detail ? detail : "no details"));
    close(error);
    throw error;
  }
  void throw_if_closed() TUTTI_REQUIRES(mutex_) {
    if (reason_) throw *reason_;
  }
  void close(const Error& reason) noexcept TUTTI_REQUIRES(mutex_) {
    if (reason_) return;
    reason_ = std::make_unique<Error>(reason);
    try {
      gave_up_ = !std::ranges::all_of(launched_, [](const Launched& launched) {
        return std::ranges::all_of(launched.ended, is_done);
      });
    } catch (const std::exception&) {  // the GPU has failed
      gave_up_ = true;
    }
    launched_.clear();
    for (ncclComm_t& comm : comms_) {
      if (comm) nccl_.comm_abort(comm);
      comm = nullptr;
    }
  }
  /// Finalizes and destroys all communicators; returns false if one fails or takes too long.
  bool finalize() TUTTI_REQUIRES(mutex_) {
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

  const NcclFunctions nccl_;
  const Group group_;
  const Duration timeout_;
  Mutex mutex_;
  std::vector<ncclComm_t> comms_ TUTTI_GUARDED_BY(mutex_);  // indexed by local rank
  std::unique_ptr<Error> reason_ TUTTI_GUARDED_BY(mutex_);  // reason for closing
  std::deque<Launched> launched_ TUTTI_GUARDED_BY(mutex_);  // launched work, oldest first
  std::string captured_ TUTTI_GUARDED_BY(mutex_);           // latest collective captured in a graph
  bool gave_up_ TUTTI_GUARDED_BY(mutex_) = false;  // true if close() discarded unfinished work
};

namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
    case DType::kBool:  // bytes with the value 0 or 1
      return ncclUint8;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
  }
  fail(ErrorCode::kInternal, "nccl: expected a known type, got ", static_cast<int>(dtype));
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "nccl: expected SUM, got MEAN; divide the sum instead");
}

bool are_equal(std::span<const std::size_t> counts) {
  return std::ranges::count(counts, counts.front()) == static_cast<std::ptrdiff_t>(counts.size());
}

/// Calls issue(rank, offset in bytes) for each rank's part; lengths may differ.
template <class Issue>
ncclResult_t for_parts(std::span<const std::size_t> counts, DType dtype, const Issue& issue) {
  ncclResult_t result = ncclSuccess;
  std::size_t first = 0;
  for (std::size_t rank = 0; rank < counts.size() && is_fine(result); ++rank) {
    if (counts[rank] > 0) result = issue(rank, first);
    first += counts[rank] * size_of(dtype);
  }
  return result;
}

std::string describe(Collective collective, const ReplicaBuffer& first) {
  return concat(tutti::to_string(collective), " of ", first.count, " x ", first.dtype);
}

class NcclOps final : public CrossDeviceOps {
 public:
  NcclOps(const Group& group, const CommunicationOptions& options, const NcclFunctions& functions)
      : nccl_(functions),
        devices_(group.local_devices),
        first_rank_(static_cast<std::size_t>(group.first_rank)),
        world_(static_cast<std::size_t>(group.world_size)),
        group_(std::make_shared<NcclGroup>(functions, group,
                                           options.timeout.value_or(kDefaultTimeout))) {
    for (const Device& device : devices_) GpuDevice::of(device).watch(group_);
  }

  std::string_view name() const override { return "nccl"; }
  /// Returns false for MIN and MAX of floating-point types, because NCCL ignores NaN while all
  /// other operations propagate it, and for 16-bit types with more than two ranks, because NCCL
  /// rounds on each rank.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    if (device != DeviceType::kGpu || op == ReduceOp::kMean) return false;
    if (is_half(dtype) && world_ > 2) return false;
    const bool picks = op == ReduceOp::kMin || op == ReduceOp::kMax;
    return is_floating(dtype) ? !picks : dtype != DType::kBool || picks;
  }
  bool spans_processes() const override { return world_ != devices_.size(); }
  bool provides(Collective collective) const override {
    return collective != Collective::kAllToAll && collective != Collective::kBarrier;
  }
  void abort(const Error& reason) noexcept override { group_->abort(reason); }
  bool check_pending() override {
    group_->check();
    return group_->is_pending();
  }

 protected:
  void require_buffers(std::span<const ReplicaBuffer> inputs,
                       std::span<const ReplicaBuffer> outputs) const override {
    for (const auto& buffers : {inputs, outputs}) {
      const bool one_each = buffers.size() == devices_.size();
      for (std::size_t r = 0; r < buffers.size(); ++r) {
        const bool fits = one_each ? buffers[r].device == devices_[r]
                                   : std::ranges::count(devices_, buffers[r].device) > 0;
        if (fits) continue;
        fail(ErrorCode::kInvalidArgument, "nccl: expected buffers on ", join(devices_),
             ", for which its communicators were created, got one on ", buffers[r].device,
             " from replica ", r, "; call Tensor::to(), or use canonical for tensors on CPUs");
      }
    }
  }
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    group_->launch(describe(Collective::kAllReduce, buffers.front()),
                   [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                     const ReplicaBuffer& own = buffers[r];
                     return nccl_.all_reduce(own.data, own.data, own.count, type_of(own.dtype),
                                             op_of(op), comm, stream);
                   });
  }
  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override {
    group_->launch(describe(Collective::kReduce, inputs.front()),
                   [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                     const ReplicaBuffer& own = inputs[r];
                     const bool is_root = rank_of(r) == static_cast<std::size_t>(root);
                     return nccl_.reduce(own.data, is_root ? output->data : nullptr, own.count,
                                         type_of(own.dtype), op_of(op), root, comm, stream);
                   });
  }
  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override {
    group_->launch(describe(Collective::kBroadcast, buffers.front()),
                   [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                     const ReplicaBuffer& own = buffers[r];
                     return nccl_.broadcast(own.data, own.data, own.count, type_of(own.dtype), root,
                                            comm, stream);
                   });
  }
  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    group_->launch(describe(Collective::kAllGather, inputs.front()),
                   [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                     const ReplicaBuffer& in = inputs[r];
                     const ReplicaBuffer& out = outputs[r];
                     const ncclDataType_t type = type_of(in.dtype);
                     if (are_equal(counts)) {
                       return nccl_.all_gather(in.data, out.data, in.count, type, comm, stream);
                     }
                     return for_parts(counts, in.dtype, [&](std::size_t root, std::size_t first) {
                       std::byte* const place = out.data + first;
                       return nccl_.broadcast(root == rank_of(r) ? in.data : place, place,
                                              counts[root], type, static_cast<int>(root), comm,
                                              stream);
                     });
                   });
  }
  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override {
    group_->launch(describe(Collective::kReduceScatter, inputs.front()), [&](std::size_t r,
                                                                             ncclComm_t comm,
                                                                             cudaStream_t stream) {
      const ReplicaBuffer& in = inputs[r];
      const ReplicaBuffer& out = outputs[r];
      const ncclDataType_t type = type_of(in.dtype);
      if (are_equal(counts)) {
        return nccl_.reduce_scatter(in.data, out.data, out.count, type, op_of(op), comm, stream);
      }
      return for_parts(counts, in.dtype, [&](std::size_t root, std::size_t first) {
        return nccl_.reduce(in.data + first, root == rank_of(r) ? out.data : nullptr, counts[root],
                            type, op_of(op), static_cast<int>(root), comm, stream);
      });
    });
  }

 private:
  std::size_t rank_of(std::size_t local) const { return first_rank_ + local; }
  const NcclFunctions nccl_;
  const std::vector<Device> devices_;
  const std::size_t first_rank_;
  const std::size_t world_;
  const std::shared_ptr<NcclGroup> group_;
};

void require_own_gpus(const Group& group) {
  for (std::size_t r = 0; r < group.local_devices.size(); ++r) {
    if (group.local_devices[r].type == DeviceType::kGpu) continue;
    fail(ErrorCode::kInvalidArgument,
         "nccl: works only on GPUs; expected a GPU for each replica, got ", group.local_devices[r],
         " for replica ", r, "; use canonical or ring for CPUs");
  }
  if (const auto shared = find_shared_gpu(group.local_devices)) {
    fail(ErrorCode::kInvalidArgument, "nccl: replicas ", shared->first, " (",
         group.local_devices[shared->first], ") and ", shared->second, " (",
         group.local_devices[shared->second], ") are both on GPU ", shared->ordinal,
         ", which NCCL refuses; expected a GPU for each replica; use canonical or "
         "hierarchical_copy");
  }
}

}  // namespace

std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options,
                                              const NcclFunctions& functions) {
  require_own_gpus(group);
  require_nccl_version(functions, "the library");
  return std::make_unique<NcclOps>(group, options, functions);
}

std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options) {
  require_own_gpus(group);
  return std::make_unique<NcclOps>(group, options, nccl_functions());
}

std::string make_nccl_id() {
  ncclUniqueId id{};
  const NcclFunctions& functions = nccl_functions();
  if (const ncclResult_t result = functions.get_unique_id(&id); !is_fine(result)) {
    fail(code_of(result),
         "nccl: creating a unique id failed: ", functions.get_error_string(result));
  }
  return {id.internal, sizeof(id.internal)};
}

std::string why_no_nccl() {
  try {
    nccl_functions();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

}  // namespace tutti::internal
