// A shard as a server holds it: values, counters, and who waits for them.
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
#include "tutti/core/sync.h"
#include "tutti/tensor/update_rule.h"

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

struct StoredShard;

/// A read that waits for a synchronous step. `index`: of the operation in its batch.
struct WaitingRead {
  std::shared_ptr<BatchAnswers> answers;
  std::size_t index = 0;
  std::variant<ReadShard, ReadRows> read = {};
  std::uint64_t at_least_steps = 0;
  StoredShard* shard = nullptr;
  std::uint64_t owner = 0;  // who asked; 0: this process
};
/// A read that waits no longer, for when the locks are released.
struct EndedRead {
  std::shared_ptr<BatchAnswers> answers;
  std::size_t index = 0;
  OperationAnswer answer = {};
};

/// `spec` never changes. Everything else belongs to whoever holds `mutex`: use ShardLocks.
struct StoredShard {
  StoredShard(ShardSpec spec, const Tensor& value, std::uint64_t first_version);

  OperationAnswer answer() const;  // without a value
  OperationAnswer read(const ReadShard& read) const;
  OperationAnswer read(const ReadRows& read) const;
  OperationAnswer read(const WaitingRead& waiting_read) const;
  /// Applies the rule, and counts a version on the shard and its slots.
  void update(const UpdateRule& rule, std::span<StoredShard* const> slots,
              const UpdateShard& update);
  /// Ranks that have not given for the next synchronous step.
  std::vector<int> missing_ranks() const;
  /// Why the next synchronous step will never be made: without the ranks that have `ended` too few
  /// are left that gave for it or may still. Nothing: it may be, or nobody has given to this shard.
  std::optional<Error> why_no_step(const std::set<int>& ended) const;
  /// Reads that waited for what there is now.
  void end_waiting(std::vector<EndedRead>& ended);

  const ShardSpec spec;
  const ShardId id;
  Mutex mutex;
  VariableComponent value;
  std::uint64_t version;
  std::uint64_t num_steps = 0;
  SyncAccumulator accumulator;
  // Of the newest gradient of a synchronous step; 0: there was none.
  int num_ranks = 0;
  int num_to_aggregate = 0;
  std::vector<WaitingRead> waiting;
};

/// Holds one shard, or several, locked in the order of their ids whoever locks them.
class ShardLocks {
 public:
  explicit ShardLocks(StoredShard& one) TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis)
      : one_(&one) {
    one.mutex.lock();
  }
  explicit ShardLocks(std::vector<StoredShard*> shards)
      TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis);
  ~ShardLocks() TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis);
  ShardLocks(const ShardLocks&) = delete;
  ShardLocks& operator=(const ShardLocks&) = delete;

 private:
  StoredShard* const one_ = nullptr;  // the common case: it takes no memory
  std::vector<StoredShard*> shards_;
};

/// Holds mutexes that stand in a row, locked from the first on.
class MutexRow {
 public:
  explicit MutexRow(std::span<Mutex> mutexes) TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis)
      : mutexes_(mutexes) {
    for (Mutex& each : mutexes_) each.lock();
  }
  ~MutexRow() TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis) {
    for (Mutex& each : mutexes_) each.unlock();
  }
  MutexRow(const MutexRow&) = delete;
  MutexRow& operator=(const MutexRow&) = delete;

 private:
  const std::span<Mutex> mutexes_;
};

/// `rule` with the same bits: elementwise, so that any partition gives them. Runs of many mebibytes
/// are split in two halves, one of which another thread applies meanwhile: whoever waits for the
/// answer to a push waits for half as long. Not for rules with uses_norms().
class HalvedRule final : public UpdateRule {
 public:
  /// `rule` outlives it.
  explicit HalvedRule(const UpdateRule& rule) : rule_(rule) {}

  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override;
  bool skips_zero_gradient() const override { return rule_.skips_zero_gradient(); }
  bool decays_weights() const override { return rule_.decays_weights(); }

  /// Bytes of weights from which on a run is split.
  static constexpr std::size_t kWorthSplitting = std::size_t{8} << 20;

 private:
  const UpdateRule& rule_;
};

}  // namespace tutti::internal
