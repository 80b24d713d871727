// Holds reads of workers that are too far ahead: who passes, who is let go when.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/clock_gate.h"

#include <utility>

namespace tutti::internal {

bool ClockGate::passes(HeldRead& read) {
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

void ClockGate::release(std::vector<HeldRead>& released) {
  std::erase_if(held_, [&](HeldRead& each) TUTTI_REQUIRES(mutex_) {
    if (table_.wanted_by(each.client) > table_.slowest()) return false;
    note_lead(each.client);
    released.push_back(std::move(each));
    return true;
  });
}

OperationAnswer ClockGate::tell(std::uint64_t client, const TellClock& tell,
                                std::vector<HeldRead>& released) {
  const MutexLock lock(mutex_);
  OperationAnswer answer = table_.tell(client, tell);
  if (!held_.empty()) release(released);
  return answer;
}

std::vector<HeldRead> ClockGate::leave(std::uint64_t client) {
  std::vector<HeldRead> released;
  const MutexLock lock(mutex_);
  if (table_.leave(client)) release(released);
  return released;
}

std::set<int> ClockGate::ended() const {
  const MutexLock lock(mutex_);
  return table_.ended();
}

void ClockGate::drop_reads_of(std::uint64_t owner) {
  std::vector<HeldRead> dropped;  // destroyed after the lock: their answers go where they go
  const MutexLock lock(mutex_);
  std::erase_if(held_, [&](HeldRead& each) {
    if (each.read.owner != owner) return false;
    dropped.push_back(std::move(each));
    return true;
  });
}

std::vector<HeldRead> ClockGate::take_all() {
  const MutexLock lock(mutex_);
  return std::exchange(held_, {});
}

void ClockGate::report(StoreStatistics& statistics) const {
  const MutexLock lock(mutex_);
  statistics.lead = leads_;
  statistics.clocks = table_.clocks();
}

}  // namespace tutti::internal
