// Measures a sum of gradients with the optimizer's step in one pass, beside one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tools/bench_all_reduce.h"

namespace tutti::tools {

struct UpdateRow {
  std::size_t num_bytes = 0;  // of the gradients of one rank
  std::size_t count = 0;
  BenchTime all_reduce;     // alone
  BenchTime separate;       // all_reduce, then each rank steps its weights
  BenchTime fused;          // all_reduce_and_update
  BenchTime gain;           // separate by fused, within one round
  BenchTime of_all_reduce;  // fused by all_reduce, within one round
  /// The time of the floor (bench_update_floor.h) by fused, within one round. Plain SGD alone; with
  /// momentum zeros.
  BenchTime of_floor;
  bool same_bits = false;  // of weights and slots of all ranks, after three steps of each
};

struct UpdateResults {
  double ping_pong_before = 0.0;  // nanoseconds
  double ping_pong_after = 0.0;
  std::vector<UpdateRow> rows;
};

/// SGD, with a slot unless `momentum` is 0, under the "canonical" communicators of threads.
UpdateResults bench_update(const BenchOptions& options, double momentum,
                           const std::function<void(const UpdateResults&)>& begin,
                           const std::function<void(const UpdateRow&)>& row);

}  // namespace tutti::tools
