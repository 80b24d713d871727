// Moves the shares of replicas in the global batch toward equal times.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/local_strategy.h"

namespace tutti::internal {

/// `wanted` scaled to a sum of 1 with each element in [least, most[r]], what a limit takes or gives
/// shared out in proportion. Elements of `wanted` are positive. Where `most` adds up to less than 1
/// the result does, too.
std::vector<double> limited_shares(std::span<const double> wanted, double least,
                                   std::span<const double> most);

/// Speeds are rows per second, compared within a step: only their ratios count, so that steps of
/// different kinds (training, evaluation) agree. A look at the end of a window takes the median of
/// each replica's speed, and moves shares in a straight line toward those that would give equal
/// times. A function of what it is told alone. Threads: any.
class ShareBalancer {
 public:
  /// `weights`: shares to begin with, in any unit. `max_rows`: that fit into each replica's memory;
  /// empty: any number. Throws kInvalidArgument naming the option and the valid range.
  ShareBalancer(const AutoBalance& options, std::vector<double> weights,
                std::vector<std::int64_t> max_rows);

  /// What a look led to.
  struct Move {
    std::vector<double> from;
    std::vector<double> to;
    /// What a step takes with `from`, by the slowest replica, and what part of that it is expected
    /// to take with `to`.
    double seconds = 0.0;
    double expected_part = 1.0;
  };

  /// A step: rows and seconds of each replica. One in which a replica had no row, or took no time,
  /// does not count. A move, when shares moved.
  std::optional<Move> note(std::span<const std::int64_t> rows, std::span<const double> seconds);

  /// They add up to 1.
  std::vector<double> shares() const;

  /// The shares; what was measured since the last look is forgotten.
  Json save() const;
  /// Whether it took them: not when they are of another number of replicas.
  bool restore(const Json& state);

 private:
  std::optional<Move> look() TUTTI_REQUIRES(mutex_);
  void forget() TUTTI_REQUIRES(mutex_);

  const AutoBalance options_;
  const std::vector<std::int64_t> max_rows_;
  mutable Mutex mutex_;
  std::vector<double> shares_ TUTTI_GUARDED_BY(mutex_);
  int steps_to_skip_ TUTTI_GUARDED_BY(mutex_);
  std::int64_t largest_rows_ TUTTI_GUARDED_BY(mutex_) = 0;            // of the window's steps
  std::vector<std::vector<double>> speeds_ TUTTI_GUARDED_BY(mutex_);  // by replica, of the window
  std::vector<double> seconds_ TUTTI_GUARDED_BY(mutex_);              // of its slowest replicas
};

}  // namespace tutti::internal
