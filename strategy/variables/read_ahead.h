// Reads of shards that other workers own, each begun while the layer before computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "strategy/variables/shards.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Remembers what a run reads and in which order; while the next run goes the same way, a read
/// begins the gather of the one after it. What it begins depends on nothing but this order, which
/// is that of all workers, so that all of them begin the same. A run that goes another way than the
/// one before reads the rest as it comes. Holds one value more than is read. Threads: read() one at
/// a time, forget() any.
class ReadAhead {
 public:
  explicit ReadAhead(std::shared_ptr<WorkerTeam> team) : team_(std::move(team)) {}

  /// Before a run, when the workers are connected.
  void begin_run();
  /// The whole of `shards` as `dtype`, on the host. All workers make the same calls.
  Tensor read(const Shards& shards, DType dtype);
  /// These shards are about to be destroyed.
  void forget(const Shards& shards);

 private:
  struct Read {
    const Shards* shards;
    DType dtype;
    bool operator==(const Read&) const = default;
  };
  struct Begun {
    Read read;
    std::uint64_t version;  // of the shards, then
    StartedGather gather;
  };
  Tensor take_begun(const Read& read) TUTTI_REQUIRES(mutex_);

  const std::shared_ptr<WorkerTeam> team_;
  Mutex mutex_;
  std::uint64_t connection_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<Read> reads_ TUTTI_GUARDED_BY(mutex_);   // of this run, so far
  std::vector<Read> before_ TUTTI_GUARDED_BY(mutex_);  // of the run before; none: it went elsewhere
  std::optional<Begun> begun_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
