// What the operations of a session have given on one task.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

/// A value, or why there is none.
struct OpOutcome {
  Nest value = {};
  std::optional<Error> error = {};
};

/// By the number of the operation. Whoever asks for one that is still to come is told later.
/// Threads: any.
class SessionValues {
 public:
  /// Called once, by whoever sets the value, or at once; without a lock.
  using Told = std::function<void(const OpOutcome& outcome)>;

  void set(std::uint64_t op, OpOutcome outcome);
  void when_there(std::uint64_t op, Told told);
  /// Nothing: it is not there.
  std::optional<OpOutcome> find(std::uint64_t op) const;
  /// Nobody asks for it any more.
  void release(std::uint64_t op);
  /// All that is asked for, now and later, has this error.
  void end(const Error& error);
  std::size_t num_held() const;

 private:
  mutable Mutex mutex_;
  std::map<std::uint64_t, OpOutcome> there_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::vector<Told>> asked_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
