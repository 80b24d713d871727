// A shard in a server's memory: values, counters, and waiting reads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "strategy/parameter_server/protocol/operation.h"
#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// Gradients of synchronous steps, by step and rank. They are not summed on arrival, because the
/// order of arrival could change the bits of the sum. Value type (copies share tensors), so that a
/// batch can be tried before it is applied. Not thread-safe.
class SyncAccumulator {
 public:
  enum class Taken { kHeld, kStale, kDuplicate };

  /// Stores the gradient of `update`, which has a SyncSpec, until its step is complete. Drops it if
  /// its step is below `num_steps` (kStale) or its rank has already sent a gradient for that step
  /// (kDuplicate). Throws kInvalidArgument, naming the ranks, if ranks disagree about the step, and
  /// kFailedPrecondition if the step is too far ahead.
  Taken take(const UpdateShard& update, std::uint64_t num_steps);

  /// Removes and returns the update of step `num_steps` if enough ranks have contributed gradients.
  /// The gradients are combined along the canonical tree in rank order and divided by
  /// SyncSpec::divisor. `shape` is the shape of the shard.
  std::optional<UpdateShard> take_complete(std::uint64_t num_steps, const Shape& shape);

  /// If step `num_steps` is complete, drops it and returns true.
  bool drop_complete(std::uint64_t num_steps);

  bool has_given(std::uint64_t step, int rank) const;
  /// Maximum number of steps beyond the next one for which gradients are held.
  static constexpr std::uint64_t kMostStepsAhead = 8;

 private:
  using GivenByRank = std::map<int, std::shared_ptr<const UpdateShard>>;
  bool is_complete(std::uint64_t num_steps) const;
  std::map<std::uint64_t, GivenByRank> steps_;
};

/// Replies to a batch that are still being collected.
struct BatchAnswers {
  std::vector<OperationAnswer> answers = {};
  std::size_t num_missing = 0;  // number of waiting reads, plus 1 until the batch has been applied
  BatchDone done = {};          // empty once it has been moved out to be called
};

/// A read that waits for a synchronous step. `index`: index of the operation in its batch.
struct WaitingRead {
  std::shared_ptr<BatchAnswers> answers;
  std::size_t index = 0;
  std::variant<ReadShard, ReadRows> read = {};
  std::uint64_t at_least_steps = 0;
  std::uint64_t owner = 0;  // sender of the batch; 0: this process
};

/// Shard of a variable, as a server stores it. Not thread-safe.
struct StoredShard {
  StoredShard(ShardSpec spec, const Tensor& value, std::uint64_t first_version);

  OperationAnswer answer() const;  // returns a reply without a value
  OperationAnswer read(const ReadShard& read) const;
  OperationAnswer read(const ReadRows& read) const;
  /// Applies the rule, and increments the versions of the shard and its slots.
  void update(const UpdateRule& rule, std::span<StoredShard* const> slots,
              const UpdateShard& update);
  /// Returns the ranks that have not contributed a gradient to the next synchronous step.
  std::vector<int> missing_ranks() const;
  /// Returns an error if the next synchronous step can no longer be completed, because too few
  /// ranks have sent a gradient or can still send one. `ended`: ranks that have ended. Returns
  /// nullopt before the first gradient.
  std::optional<Error> why_no_step(const std::set<int>& ended) const;

  const ShardSpec spec;
  const ShardId id;
  VariableComponent value;
  std::uint64_t version;
  std::uint64_t num_steps = 0;
  SyncAccumulator accumulator;
  // Settings of the newest gradient for a synchronous step; 0 before the first gradient.
  int num_ranks = 0;
  int num_to_aggregate = 0;
  std::vector<WaitingRead> waiting;
};

/// Update rule that applies `rule` to the halves of a large shard on two threads. This halves the
/// time that clients wait for the reply to a large push. The result is bit-identical, because rules
/// are elementwise and do not depend on the partition. Not for rules with uses_norms().
class HalvedRule final : public UpdateRule {
 public:
  /// `rule` must outlive this object.
  explicit HalvedRule(const UpdateRule& rule) : rule_(rule) {}

  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override;
  bool skips_zero_gradient() const override { return rule_.skips_zero_gradient(); }
  bool decays_weights() const override { return rule_.decays_weights(); }

  /// Minimum size, in bytes, of weights that are split between two threads.
  static constexpr std::size_t kWorthSplitting = std::size_t{8} << 20;

 private:
  const UpdateRule& rule_;
};

}  // namespace tutti::internal
