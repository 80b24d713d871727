// Gradients of a synchronous step, held by rank until enough have come.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// A place per rank and step, no running sum: the order of arrival cannot show in the bits. A value
/// (copies share tensors), so that a batch can be tried before it is applied. Not synchronised.
class SyncAccumulator {
 public:
  enum class Taken { kHeld, kStale, kDuplicate };

  /// Holds the gradient of `update`, which has a SyncSpec; not one for a step below `num_steps`
  /// (kStale), nor a second one of the same rank (kDuplicate). Throws kInvalidArgument naming the
  /// ranks that disagree about the step, kFailedPrecondition for a step that is far ahead.
  Taken take(const UpdateShard& update, std::uint64_t num_steps);

  /// The update of step `num_steps` if enough ranks have given, with the gradient combined along
  /// the canonical tree in rank order and divided; it is held no longer. `shape`: of the shard.
  std::optional<UpdateShard> take_complete(std::uint64_t num_steps, const Shape& shape);

  /// Whether step `num_steps` is complete; then it is dropped.
  bool drop_complete(std::uint64_t num_steps);

  bool has_given(std::uint64_t step, int rank) const;
  /// By step, then rank; take() of each, in this order, makes the same again.
  std::vector<std::shared_ptr<const UpdateShard>> held() const;

  /// How many steps beyond the next one are held.
  static constexpr std::uint64_t kMostStepsAhead = 8;

 private:
  using GivenByRank = std::map<int, std::shared_ptr<const UpdateShard>>;
  bool is_complete(std::uint64_t num_steps) const;
  std::map<std::uint64_t, GivenByRank> steps_;
};

}  // namespace tutti::internal
