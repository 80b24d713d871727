// Steps of a worker that trains apart: joining the others, telling clocks, waiting for the slow.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "strategy/parameter_server/client/parameter_servers.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

void ParameterServers::leave() noexcept {
  if (!pace_) return;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(has_joined_, false)) return;
  }
  try {
    // Leaving is not worth a longer wait: the end of the connection says it, too.
    const TimePoint end = deadline_after(Clock::system().now(), durations::kSilentAfter);
    const TellClock leave = own_clock(TellClock::Event::kLeave);
    std::vector<std::shared_ptr<PendingAnswers>> pending;
    for (const auto& each : links_) pending.push_back(each->read({Operation(leave)}));
    for (const auto& each : pending) (void)each->wait(end);
  } catch (const std::exception& error) {
    log_info(concat("worker ", pace_->worker,
                    ": could not say good-bye to the servers: ", error.what()));
  }
}

TimePoint ParameterServers::read_deadline() const {
  const Duration longest = pace_ ? std::max(timeout_, pace_->patience) : timeout_;
  return deadline_after(Clock::system().now(), longest);
}

std::uint64_t ParameterServers::clock() {
  MutexLock lock(mutex_);
  return clock_;
}

std::uint64_t ParameterServers::num_left_out() {
  MutexLock lock(mutex_);
  return replica_steps_ ? replica_steps_->num_left_out() : 0;
}

std::uint64_t ParameterServers::steps_to_wait_for(const std::shared_ptr<ReadCache>& cache) {
  MutexLock lock(mutex_);
  return replica_steps_ ? replica_steps_->at_least(cache) : 0;
}

std::optional<SyncSpec> ParameterServers::give(const std::shared_ptr<ReadCache>& cache) {
  MutexLock lock(mutex_);
  return replica_steps_->give(cache);
}

TellClock ParameterServers::own_clock(TellClock::Event event) {
  return {event, pace_->worker, clock(), pace_->staleness};
}

void ParameterServers::begin_apart() {
  bool has_joined = false;
  {
    MutexLock lock(mutex_);
    has_joined = has_joined_;
    has_changed_ = false;
    if (replica_steps_) replica_steps_->begin_step();
  }
  if (has_joined) return;
  // Servers need not agree who is the slowest at this moment.
  std::uint64_t greatest = 0;
  for (const OperationAnswer& answer : ask_all(own_clock(TellClock::Event::kJoin))) {
    greatest = std::max(greatest, answer.num_steps);
  }
  MutexLock lock(mutex_);
  has_joined_ = true;
  clock_ = greatest;
}

void ParameterServers::end_apart() {
  settle();
  {
    MutexLock lock(mutex_);
    if (!has_changed_) return;
    ++clock_;
  }
  (void)ask_all(own_clock(TellClock::Event::kAdvance));
  forget_reads();
}

std::vector<OperationAnswer> ParameterServers::wait_for_read(int server, PendingAnswers& pending) {
  try {
    return pending.wait(read_deadline());
  } catch (const Error& error) {
    if (pace_ && error.code() == ErrorCode::kDeadlineExceeded) fail_stalled(server, error);
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

void ParameterServers::fail_stalled(int server, const Error& error) {
  const auto answer = link(server).read({Operation(ReadStatistics{})})->wait(deadline()).front();
  std::map<int, std::uint64_t> clocks =
      ServerStatistics::from_tensor(answer.value.value_or(Tensor())).clocks;
  const std::string own = concat("worker ", pace_->worker, " has ended ", clocks[pace_->worker],
                                 " steps and waits to read");
  clocks.erase(pace_->worker);
  const auto slowest = std::ranges::min_element(
      clocks, {}, [](const auto& worker_and_clock) { return worker_and_clock.second; });
  if (slowest == clocks.end()) {
    fail(ErrorCode::kDeadlineExceeded, error.message(), ": ", own,
         "; no other worker is there; expected ", pace_->num_to_aggregate, " of ",
         pace_->num_workers, " to give gradients; did the others end?");
  }
  const std::string rule = pace_->mode == UpdateMode::kStaleSync
                               ? concat("at most ", pace_->staleness, " steps behind (staleness)")
                               : concat("gradients of ", pace_->num_to_aggregate, " of ",
                                        pace_->num_workers, " workers for each step");
  const auto& [worker, clock] = *slowest;
  fail(ErrorCode::kDeadlineExceeded, error.message(), ": ", own, " for worker ", worker,
       ", which has ended ", clock, "; expected ", rule, "; is worker ", worker,
       " stopped or stuck? A greater local.timeout waits longer");
}

}  // namespace tutti::internal
