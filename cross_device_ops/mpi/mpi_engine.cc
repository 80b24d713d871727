// Headers by messages, data by MPI.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/mpi/mpi_engine.h"

#include <atomic>
#include <climits>
#include <utility>
#include <vector>

#include "cross_device_ops/algorithms/meeting_engine.h"
#include "cross_device_ops/algorithms/message_engine.h"
#include "cross_device_ops/mpi/mpi_call.h"
#include "cross_device_ops/mpi/mpi_hub.h"

namespace tutti::internal {
namespace {

using durations::kLinger;

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
  const int tag = kFirstTag + (process * 31 + groups_made.fetch_add(1)) % kNumTags;
  return link.exchange(Purpose::kIntroduction, Introduction{process, tag}, deadline,
                       concat("mpi: rank ", link.rank));
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

class MpiEngine final : public MeetingEngine {
 public:
  MpiEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages, TimePoint deadline)
      : MeetingEngine(std::move(link), std::move(messages)), runtime_(MpiRuntime::get()) {
    runtime_.require_usable();
    if (size() == 1) return;
    const std::vector<Introduction> ranks = introduce(link_, runtime_.rank(), deadline);
    require_own_processes(ranks);
    comm_ = make_comm(runtime_, ranks);
  }
  ~MpiEngine() override {
    // Where a call was given up MPI may still need it.
    if (comm_ == MPI_COMM_NULL || is_closed() || !runtime_.is_usable()) return;
    const MpiRuntime::Calls guard(runtime_);
    MPI_Comm_free(&comm_);
  }

  std::string_view name() const override { return "mpi"; }
  /// Not 16-bit numbers, which MPI has not; the communicator brings them as float32.
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || (can_combine(op, dtype) && !is_half(dtype));
  }
  /// MPI only recommends it; Open MPI and MPICH do the same steps for the same call and ranks.
  Determinism determinism() const override { return Determinism::kRunToRun; }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    const TimePoint deadline = deadline_after(Clock::system().now(), kDefaultTimeout);
    return std::make_unique<MpiEngine>(link_.subgroup(ranks, number),
                                       messages_->subgroup(ranks, number), deadline);
  }

 private:
  bool is_native(const CollectiveCall& call, const CollectiveHeader& header) override;
  void run_native(const CollectiveCall& call, const CollectiveHeader& header,
                  TimePoint deadline) override;
  void missed(const CollectiveCall& call) override;
  void give_up(MpiCall& call, const CollectiveHeader& header);

  MpiRuntime& runtime_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

bool MpiEngine::is_native(const CollectiveCall& call, const CollectiveHeader& header) {
  runtime_.require_usable();
  if (size() == 1 || call.collective == Collective::kBarrier) return false;
  if (call.collective == Collective::kAllToAll) return true;
  return header.count > 0 && header.count <= INT_MAX;
}

/// Helps those who have begun theirs.
void MpiEngine::missed(const CollectiveCall& call) {
  if (!runtime_.is_usable()) return;
  const auto stand_in = std::make_shared<StandIn>(call, runtime_, comm_, rank());
  runtime_.keep(stand_in);
  stand_in->running().start();
  poll_until(deadline_after(Clock::system().now(), kLastWords),
             [&] { return stand_in->running().test(); });
}

// All ranks have come, so all begin, whatever has happened since.
void MpiEngine::run_native(const CollectiveCall& call, const CollectiveHeader& header,
                           TimePoint deadline) {
  MpiCall running(call, runtime_, comm_, rank());
  running.start();
  bool ended = false;
  const auto ended_or_closed = [&] { return (ended = running.test()) || is_closed(); };
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
  const TimePoint end = deadline_after(Clock::system().now(), kLinger);
  if (!poll_until(end, [&] { return call.test(); })) {
    runtime_.retire(concat(header.describe(), " was given up, and MPI did not end it in ",
                           kLinger / std::chrono::seconds(1), " s more"));
  }
  throw_if_closed();
}

}  // namespace

std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline) {
  require_one_replica("mpi", group);
  MpiRuntime::get();
  return std::make_unique<MpiEngine>(link_all(group.transport),
                                     message_engine(group.transport, "canonical"), deadline);
}

}  // namespace tutti::internal
