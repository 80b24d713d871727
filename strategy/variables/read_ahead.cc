// Reads of shards that other workers own, each begun while the layer before computes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/read_ahead.h"

#include <utility>

namespace tutti::internal {

void ReadAhead::begin_run() {
  MutexLock lock(mutex_);
  begun_.reset();
  // A worker that was started again knows no run before, so the others forget theirs.
  const std::uint64_t before = std::exchange(connection_, team_->connection());
  if (before != connection_) reads_.clear();
  before_ = std::exchange(reads_, {});
}

Tensor ReadAhead::read(const Shards& shards, DType dtype) {
  MutexLock lock(mutex_);
  const Read read{&shards, dtype};
  Tensor whole = take_begun(read);
  if (!whole.defined()) whole = shards.start_gather(dtype).wait();
  const std::size_t next = reads_.size() + 1;
  if (next > before_.size() || before_[next - 1] != read) before_.clear();
  reads_.push_back(read);
  if (next < before_.size() && before_[next].shards) {
    const Read& coming = before_[next];
    begun_.emplace(
        Begun{coming, coming.shards->version(), coming.shards->start_gather(coming.dtype)});
  }
  return whole;
}

/// Undefined: something else was begun, or it was written since. Waits for that, too.
Tensor ReadAhead::take_begun(const Read& read) {
  std::optional<Begun> begun = std::exchange(begun_, std::nullopt);
  if (!begun || begun->read != read || begun->version != read.shards->version()) return {};
  return begun->gather.wait();
}

void ReadAhead::forget(const Shards& shards) {
  MutexLock lock(mutex_);
  for (std::vector<Read>* reads : {&reads_, &before_}) {
    for (Read& each : *reads) {
      if (each.shards == &shards) each.shards = nullptr;
    }
  }
  if (begun_ && begun_->read.shards == &shards) begun_->read.shards = nullptr;
}

}  // namespace tutti::internal
