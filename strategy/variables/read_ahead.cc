// Implements early gathers of variables, which start before the step reads the values.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/read_ahead.h"

#include <utility>

#include "strategy/multi_worker/straggler_watch.h"

namespace tutti::internal {

Tensor StartedGather::wait() {
  const StragglerWatch::Waiting waiting(team.stragglers());
  handle.wait();
  return all.freeze();
}

void ReadAhead::begin_run() {
  MutexLock lock(mutex_);
  begun_.reset();
  // A restarted worker has no record of earlier runs, so the other workers must discard theirs.
  const std::uint64_t before = std::exchange(connection_, team_->connection());
  if (before != connection_) reads_.clear();
  before_ = std::exchange(reads_, {});
}

Tensor ReadAhead::read(const GatheredVariable& variable, DType dtype) {
  MutexLock lock(mutex_);
  const Read read{&variable, dtype};
  Tensor whole = take_begun(read);
  if (!whole.defined()) whole = variable.start_gather(dtype).wait();
  const std::size_t next = reads_.size() + 1;
  if (next > before_.size() || before_[next - 1] != read) before_.clear();
  reads_.push_back(read);
  if (next < before_.size() && before_[next].variable) {
    const Read& coming = before_[next];
    begun_.emplace(
        Begun{coming, coming.variable->version(), coming.variable->start_gather(coming.dtype)});
  }
  return whole;
}

/// Returns the gathered value, or an undefined tensor if another read was started or the variable
/// has been written since.
Tensor ReadAhead::take_begun(const Read& read) {
  std::optional<Begun> begun = std::exchange(begun_, std::nullopt);
  if (!begun || begun->read != read || begun->version != read.variable->version()) return {};
  return begun->gather.wait();
}

void ReadAhead::forget(const GatheredVariable& variable) {
  MutexLock lock(mutex_);
  for (std::vector<Read>* reads : {&reads_, &before_}) {
    for (Read& each : *reads) {
      if (each.variable == &variable) each.variable = nullptr;
    }
  }
  if (begun_ && begun_->read.variable == &variable) begun_->read.variable = nullptr;
}

}  // namespace tutti::internal
