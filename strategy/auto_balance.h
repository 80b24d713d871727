// Shares of the global batch that follow what replicas need: what a user may choose.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/core/clock.h"

namespace tutti {

/// How LocalStrategyOptions::auto_balance measures replicas and moves their shares. A replica's
/// time is what its part of a step takes without what it waits for the others. Shares move between
/// steps, so which replica adds which rows follows measured time: **the same bits are not
/// promised** (docs/determinism.md). With a Clock that gives the same times, shares are the same.
struct AutoBalance {
  /// Steps between two looks at the shares. The median of a replica's times counts, so that a step
  /// which something else has disturbed moves nothing.
  int window = 8;
  /// Steps that do not count: at the beginning, they make what is made at first use.
  int warm_up = 2;
  /// Shares move when that is expected to shorten a step by more than this part of it, and so come
  /// to rest.
  double tolerance = 0.05;
  /// By how much of the global batch a replica's share changes in one move at most.
  double max_change = 0.1;
  /// No share gets smaller, nor smaller than a row of the batch: who has no row is not measured.
  double min_share = 0.01;
  /// Measures. Must outlive the strategy.
  Clock* clock = &Clock::system();
};

}  // namespace tutti
