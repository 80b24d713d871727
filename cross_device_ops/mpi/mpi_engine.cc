// Headers by messages, data by MPI.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/algorithms/message_engine.h"
#include "tutti/cross_device_ops/algorithms/rank_link.h"
#include "tutti/cross_device_ops/mpi/mpi_call.h"
#include "tutti/cross_device_ops/mpi/mpi_runtime.h"
#include "tutti/cross_device_ops/packed_call.h"
#include "tutti/cross_device_ops/plugin/abort_watch.h"
#include "tutti/cross_device_ops/told_reason.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

// Of a call that all ranks have begun and that is given up: to finish with the caller's memory.
constexpr Duration kGrace = std::chrono::seconds(2);
// Of a call that this rank leaves before it begins: to help those who have begun.
constexpr Duration kStandInTime = std::chrono::milliseconds(50);
// For making MPI's groups: Open MPI sends messages of such a tag among those of the transport,
// which has lower tags. Every MPI has tags up to 32767.
constexpr int kFirstTag = 1000;
constexpr int kNumTags = 32767 - kFirstTag;

/// What the ranks of a group tell each other while it is made.
struct Introduction {
  std::int32_t process = 0;  // of MPI_COMM_WORLD
  std::int32_t tag = 0;      // rank 0's counts
};

std::vector<Introduction> introduce(const RankLink& link, int process, TimePoint deadline) {
  static std::atomic<int> groups_made{0};
  std::vector<Introduction> all(static_cast<std::size_t>(link.size()));
  Introduction& own = all[static_cast<std::size_t>(link.rank)];
  own = {process, kFirstTag + (process * 31 + groups_made.fetch_add(1)) % kNumTags};
  std::vector<std::unique_ptr<Work>> works;
  for (int r = 0; r < link.size(); ++r) {
    if (r == link.rank) continue;
    auto& other = all[static_cast<std::size_t>(r)];
    works.push_back(
        link.recv(r, Purpose::kIntroduction, {}, std::as_writable_bytes(std::span(&other, 1))));
    works.push_back(link.send(r, Purpose::kIntroduction, {}, std::as_bytes(std::span(&own, 1))));
  }
  for (const auto& work : works) work->wait(deadline);
  return all;
}

void require_own_processes(const std::vector<Introduction>& all) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t s = 0; s < r; ++s) {
      if (all[s].process != all[r].process) continue;
      fail(ErrorCode::kUnimplemented, "mpi: ranks ", s, " and ", r, " are both MPI process ",
           all[r].process, "; expected a process for each rank; try canonical between threads");
    }
  }
}

/// MPI's own group of these ranks, numbered as they are. Blocks until all have called.
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

class MpiEngine final : public CollectiveEngine {
 public:
  MpiEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages, TimePoint deadline)
      : link_(std::move(link)),
        messages_(std::move(messages)),
        runtime_(MpiRuntime::get()),
        watch_(*link_.transport, link_.ranks) {
    runtime_.require_usable();
    if (size() == 1) return;
    const std::vector<Introduction> ranks = introduce(link_, runtime_.rank(), deadline);
    require_own_processes(ranks);
    comm_ = make_comm(runtime_, ranks);
  }
  ~MpiEngine() override {
    // Where a call was given up MPI may still need it.
    if (comm_ == MPI_COMM_NULL || is_closed_ || !runtime_.is_usable()) return;
    const MpiRuntime::Calls guard(runtime_);
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view name() const override { return "mpi"; }
  /// Not 16-bit numbers, which MPI has not; the communicator brings them as float32.
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || (can_combine(op, dtype) && !is_half(dtype));
  }
  /// MPI only recommends it; Open MPI and MPICH do the same steps for the same call and ranks.
  Determinism determinism() const override { return Determinism::kRunToRun; }

  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    const TimePoint deadline = deadline_after(Clock::system().now(), std::chrono::seconds(120));
    return std::make_unique<MpiEngine>(link_.subgroup(ranks, number),
                                       messages_->subgroup(ranks, number), deadline);
  }
  void tend(const std::function<std::string()>& own_state) override {
    messages_->tend(own_state);
    const auto reason = watch_.look();
    if (!reason) return;
    MutexLock lock(mutex_);
    told_ = reason;
    is_closed_ = true;
  }
  std::vector<std::string> whereabouts(TimePoint deadline) override {
    return messages_->whereabouts(deadline);
  }

 private:
  bool is_native(const CollectiveCall& call, const CollectiveHeader& header) const;
  void meet(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);
  void stand_in(const CollectiveCall& call);
  void run_native(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);
  void give_up(MpiCall& call, const CollectiveHeader& header);
  void close(const Error& reason) noexcept;
  void throw_if_closed();

  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;
  MpiRuntime& runtime_;
  AbortWatch watch_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::atomic<bool> is_closed_{false};
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> told_ TUTTI_GUARDED_BY(mutex_);  // by a peer; a call says more of it
};

// The same on all ranks: header.count is, call.count is not.
bool MpiEngine::is_native(const CollectiveCall& call, const CollectiveHeader& header) const {
  if (size() == 1 || call.collective == Collective::kBarrier) return false;
  if (call.collective == Collective::kAllToAll) return true;
  return header.count > 0 && header.count <= INT_MAX;
}

void MpiEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                    TimePoint deadline) {
  throw_if_closed();
  try {
    runtime_.require_usable();
    if (!is_native(call, header)) return messages_->run(call, header, deadline);
    meet(call, header, deadline);
    if (call.outputs.size() <= 1) return run_native(call, header, deadline);
    // MPI would pay for each buffer.
    run_packed(call, [&](const CollectiveCall& flat) { run_native(flat, header, deadline); });
  } catch (const Error& error) {
    close(error);
    throw;
  }
}

void MpiEngine::meet(const CollectiveCall& call, const CollectiveHeader& header,
                     TimePoint deadline) {
  CollectiveCall meeting;
  meeting.collective = Collective::kBarrier;
  try {
    messages_->run(meeting, header, deadline);
  } catch (const Error& error) {
    // Of two calls that differ nobody begins either.
    if (error.code() != ErrorCode::kInvalidArgument) stand_in(call);
    throw;
  }
}

/// Others may have left the meeting as if this rank were to follow.
void MpiEngine::stand_in(const CollectiveCall& call) {
  if (!runtime_.is_usable()) return;
  const auto stand_in = std::make_shared<StandIn>(call, runtime_, comm_, rank());
  runtime_.keep(stand_in);
  stand_in->running().start();
  poll_until(deadline_after(Clock::system().now(), kStandInTime),
             [&] { return stand_in->running().test(); });
}

// All ranks have come, so all begin, whatever has happened since.
void MpiEngine::run_native(const CollectiveCall& call, const CollectiveHeader& header,
                           TimePoint deadline) {
  MpiCall running(call, runtime_, comm_, rank());
  running.start();
  bool ended = false;
  const auto ended_or_closed = [&] { return (ended = running.test()) || is_closed_; };
  const bool in_time = poll_until(deadline, ended_or_closed);
  if (ended) return;
  if (!in_time) {
    close(Error(ErrorCode::kDeadlineExceeded,
                concat("rank ", rank(), ": ", header.describe(), ": all ", size(),
                       " ranks came, but MPI did not end the call before the deadline")));
  }
  give_up(running, header);
}

void MpiEngine::give_up(MpiCall& call, const CollectiveHeader& header) {
  const TimePoint end = deadline_after(Clock::system().now(), kGrace);
  if (!poll_until(end, [&] { return call.test(); })) {
    runtime_.retire(concat(header.describe(), " was given up, and MPI did not end it in ",
                           kGrace / std::chrono::seconds(1), " s more"));
  }
  throw_if_closed();
}

void MpiEngine::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed_) closed_ = reason;
    is_closed_ = true;
  }
  messages_->abort(reason);
}

void MpiEngine::throw_if_closed() {
  MutexLock lock(mutex_);
  if (closed_) throw *closed_;
  if (told_) throw as_it_was(*told_);
}

}  // namespace

std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline) {
  if (!group.transport || group.local_devices.size() != 1 ||
      group.world_size != group.transport->size() || group.first_rank != group.transport->rank()) {
    fail(ErrorCode::kInvalidArgument, "mpi: expected a group of one local replica per rank with a ",
         "transport of its size, got ", group.world_size, " ranks, rank ", group.first_rank,
         " with ", group.local_devices.size(), " local replicas",
         group.transport ? "" : " and no transport");
  }
  MpiRuntime::get();
  return std::make_unique<MpiEngine>(link_all(group.transport),
                                     message_engine(group.transport, "canonical"), deadline);
}

}  // namespace tutti::internal
