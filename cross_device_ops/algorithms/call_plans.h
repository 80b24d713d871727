// Plans of the calls of a rank, kept for the next call like it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/algorithms/algorithm.h"
#include "tutti/cross_device_ops/algorithms/message_run.h"

namespace tutti::internal {

/// Training makes the same calls in every step. Threads: one at a time.
class CallPlans {
 public:
  explicit CallPlans(std::size_t segment_bytes) : segment_bytes_(segment_bytes) {}
  /// Valid until the next call.
  const CallPlan& plan_for(const Algorithm& algorithm, int rank, int size,
                           const CollectiveCall& call);

 private:
  static constexpr std::size_t kKept = 64;

  struct Entry {
    const Algorithm* algorithm;
    Collective collective;
    std::size_t element_bytes;
    std::size_t count;
    int root;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> receive_counts;
    CallPlan plan;

    bool is_for(const Algorithm& other, const CollectiveCall& call) const;
  };

  const std::size_t segment_bytes_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t next_ = 0;  // to be replaced
};

}  // namespace tutti::internal
