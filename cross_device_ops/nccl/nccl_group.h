// The NCCL communicators of a group's local ranks: made once, used by one launch after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/nccl/nccl_functions.h"
#include "tensor/gpu/peer_work.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

/// One non-blocking communicator per local GPU. No call waits for a GPU: what NCCL does on the host
/// (connecting, launching) is waited for, with a deadline, and its asynchronous errors are asked
/// for meanwhile. As the PeerWork of its devices it asks for these errors while others wait for a
/// GPU, and gives up what runs there for longer than the deadline. After any failure all
/// communicators are aborted, and later launches throw the same reason; so does every wait for one
/// of the GPUs if work was given up, until the group is gone. Threads: launch() by one at a time,
/// all else by any.
class NcclGroup final : public PeerWork {
 public:
  /// One rank's part of a collective: calls functions of NCCL with this communicator and stream.
  using Issue =
      std::function<ncclResult_t(std::size_t local, ncclComm_t comm, cudaStream_t stream)>;

  /// Makes the communicators: with ranks in other processes they find each other by `group.store`.
  /// Throws kDeadlineExceeded when not all ranks are there after `timeout`; what NCCL says, with
  /// rank and device, otherwise.
  NcclGroup(const NcclFunctions& functions, const Group& group, Duration timeout);
  /// Lets what was launched end, for a few seconds at most.
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Calls `issue` for every local rank, as one group, on the devices' communication streams.
  /// Returns when NCCL has launched all. `what` is told in errors.
  void launch(std::string_view what, const Issue& issue);
  /// Ends running and later launches with kAborted and this reason.
  void abort(const Error& reason) noexcept;

  bool is_pending() override;
  void check() override;
  void check_graph() override;
  void note_graph(std::shared_ptr<DeviceEvent> began, std::shared_ptr<DeviceEvent> ended) override;

 private:
  using Events = std::vector<std::shared_ptr<DeviceEvent>>;  // by local rank
  /// What stands between events of the devices' streams.
  struct Launched {
    std::string what;
    Events began, ended;
    std::optional<TimePoint> running_since = std::nullopt;  // seen by check()
  };

  bool spans_processes() const {
    return group_.world_size != static_cast<int>(group_.local_devices.size());
  }
  std::string rank_and_device(std::size_t local) const;
  ncclUniqueId agree_on_id(TimePoint deadline);
  void initialize(TimePoint deadline);
  void wait_for_host_work(std::string_view what, TimePoint deadline);
  /// Whether a communicator still works on the host; throws its asynchronous error.
  bool is_in_progress(std::string_view what) TUTTI_REQUIRES(mutex_);
  bool is_capturing() const;
  void note(std::string_view what, Events began);
  void drop_done() TUTTI_REQUIRES(mutex_);
  void check_duration(Launched& launched) TUTTI_REQUIRES(mutex_);
  void require(ncclResult_t result, std::size_t local, std::string_view what)
      TUTTI_REQUIRES(mutex_);
  void throw_if_closed() TUTTI_REQUIRES(mutex_);
  void close(const Error& reason) noexcept TUTTI_REQUIRES(mutex_);
  bool finalize() TUTTI_REQUIRES(mutex_);

  const NcclFunctions nccl_;
  const Group group_;
  const Duration timeout_;
  Mutex mutex_;
  std::vector<ncclComm_t> comms_ TUTTI_GUARDED_BY(mutex_);  // by local rank
  std::unique_ptr<Error> reason_ TUTTI_GUARDED_BY(mutex_);  // why it is closed
  std::deque<Launched> launched_ TUTTI_GUARDED_BY(mutex_);  // the oldest first
  std::string captured_ TUTTI_GUARDED_BY(mutex_);           // one that graphs may hold, if any
  bool gave_up_ TUTTI_GUARDED_BY(mutex_) = false;           // work was lost when it was closed
};

}  // namespace tutti::internal
