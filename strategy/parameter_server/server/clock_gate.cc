// How many steps each worker has ended: joining, advancing, leaving; whose reads pass when.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/clock_gate.h"

#include <algorithm>
#include <utility>

namespace tutti::internal {
namespace {

std::string bound_text(std::uint64_t staleness) {
  return staleness == TellClock::kUnboundedStaleness ? "none" : concat(staleness);
}

}  // namespace

ClockTable::Worker& ClockTable::join(std::uint64_t client, const TellClock& tell,
                                     std::uint64_t clock) {
  for (const auto& [other, worker] : workers_) {
    if (other == client || worker.staleness == tell.staleness) continue;
    fail(ErrorCode::kInvalidArgument, "workers ", worker.number, " and ", tell.worker,
         " do not agree about the staleness that they allow: ", bound_text(worker.staleness),
         " and ", bound_text(tell.staleness), "; expected one bound, try the same options on all");
  }
  ended_.erase(tell.worker);
  return workers_.insert_or_assign(client, Worker{tell.worker, clock, tell.staleness})
      .first->second;
}

OperationAnswer ClockTable::tell(std::uint64_t client, const TellClock& tell) {
  using Event = TellClock::Event;
  const auto known = workers_.find(client);
  OperationAnswer answer;
  answer.num_steps = tell.clock;
  if (tell.event == Event::kLeave) {
    if (leave(client)) ended_.insert(tell.worker);
  } else if (known == workers_.end()) {
    const bool begins = tell.event == Event::kJoin && !workers_.empty();
    answer.num_steps = join(client, tell, begins ? slowest() : tell.clock).clock;
  } else if (tell.event == Event::kAdvance && tell.clock < known->second.clock) {
    fail(ErrorCode::kFailedPrecondition, "worker ", tell.worker, " tells of clock ", tell.clock,
         "; expected at least ", known->second.clock, ", which it has told before");
  } else {
    if (tell.event == Event::kAdvance) known->second.clock = tell.clock;
    answer.num_steps = known->second.clock;  // one that joins twice repeats a message
  }
  answer.version = slowest();
  return answer;
}

std::uint64_t ClockTable::slowest() const {
  std::uint64_t slowest = TellClock::kUnboundedStaleness;
  for (const auto& [client, worker] : workers_) slowest = std::min(slowest, worker.clock);
  return workers_.empty() ? 0 : slowest;
}

std::uint64_t ClockTable::wanted_by(std::uint64_t client) const {
  const auto found = workers_.find(client);
  if (found == workers_.end()) return 0;
  const Worker& worker = found->second;
  return worker.clock > worker.staleness ? worker.clock - worker.staleness : 0;
}

std::optional<std::uint64_t> ClockTable::lead_of(std::uint64_t client) const {
  const auto found = workers_.find(client);
  if (found == workers_.end() || found->second.staleness == TellClock::kUnboundedStaleness) {
    return std::nullopt;
  }
  return found->second.clock - slowest();
}

std::map<int, std::uint64_t> ClockTable::clocks() const {
  std::map<int, std::uint64_t> clocks;
  for (const auto& [client, worker] : workers_) {
    const auto [own, is_new] = clocks.emplace(worker.number, worker.clock);
    if (!is_new) own->second = std::min(own->second, worker.clock);
  }
  return clocks;
}

void count_difference(ServerStatistics::Histogram& histogram, std::uint64_t difference) {
  ++histogram[std::min(difference, ServerStatistics::kGreatestDifference)];
}

bool ClockGate::passes(WaitingRead& read) {
  const MutexLock lock(mutex_);
  if (table_.wanted_by(read.client) > table_.slowest()) {
    held_.push_back(std::move(read));
    return false;
  }
  note_lead(read.client);
  return true;
}

void ClockGate::note_lead(std::uint64_t client) {
  if (const auto lead = table_.lead_of(client)) count_difference(leads_, *lead);
}

void ClockGate::release(std::vector<WaitingRead>& released) {
  std::erase_if(held_, [&](WaitingRead& each) TUTTI_REQUIRES(mutex_) {
    if (table_.wanted_by(each.client) > table_.slowest()) return false;
    note_lead(each.client);
    released.push_back(std::move(each));
    return true;
  });
}

OperationAnswer ClockGate::tell(std::uint64_t client, const TellClock& tell,
                                std::vector<WaitingRead>& released) {
  const MutexLock lock(mutex_);
  OperationAnswer answer = table_.tell(client, tell);
  if (!held_.empty()) release(released);
  return answer;
}

std::vector<WaitingRead> ClockGate::leave(std::uint64_t client) {
  std::vector<WaitingRead> released;
  const MutexLock lock(mutex_);
  if (table_.leave(client)) release(released);
  return released;
}

std::set<int> ClockGate::ended() const {
  const MutexLock lock(mutex_);
  return table_.ended();
}

std::vector<WaitingRead> ClockGate::take_reads_of(std::uint64_t owner) {
  const MutexLock lock(mutex_);
  return take_waiting(held_, owner);
}

void ClockGate::report(ServerStatistics& statistics) const {
  const MutexLock lock(mutex_);
  statistics.lead = leads_;
  statistics.clocks = table_.clocks();
}

}  // namespace tutti::internal
