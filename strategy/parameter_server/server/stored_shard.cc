// Implements StoredShard, SyncAccumulator and HalvedRule.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/stored_shard.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {

namespace {

bool are_equal(const UpdateScalars& a, const UpdateScalars& b) {
  return a.learning_rate == b.learning_rate && a.iteration == b.iteration &&
         a.gradient_scale == b.gradient_scale && a.weight_decay == b.weight_decay;
}

/// Returns a phrase for the first difference between the updates; nullptr if they agree.
const char* difference(const UpdateShard& a, const UpdateShard& b) {
  if (a.rule != b.rule) return "the rule";
  if (!are_equal(a.scalars, b.scalars)) return "the scalars (learning rate, iteration, ...)";
  if (a.slots != b.slots) return "the slots";
  if (a.rows.has_value() != b.rows.has_value()) return "whether the gradient is sparse";
  const SyncSpec &x = *a.sync, &y = *b.sync;
  if (x.num_ranks != y.num_ranks) return "the number of ranks";
  if (x.num_to_aggregate != y.num_to_aggregate) return "the number of aggregated ranks";
  if (x.divisor != y.divisor) return "the divisor";
  const bool must_be_equal = a.rule == kAddOnce;
  if (must_be_equal && !std::ranges::equal(a.gradient.bytes(), b.gradient.bytes())) {
    return "the added value";
  }
  return nullptr;
}

}  // namespace

SyncAccumulator::Taken SyncAccumulator::take(const UpdateShard& update, std::uint64_t num_steps) {
  const SyncSpec& sync = *update.sync;
  if (sync.step < num_steps) return Taken::kStale;
  if (sync.step - num_steps > kMostStepsAhead) {
    fail(ErrorCode::kFailedPrecondition, "rank ", sync.rank, " sent a gradient for step ",
         sync.step, " while step ", num_steps, " is next; expected at most step ",
         num_steps + kMostStepsAhead, "; read with at_least_steps before each step");
  }
  const auto held = steps_.find(sync.step);
  if (held != steps_.end()) {
    if (held->second.count(sync.rank) != 0) return Taken::kDuplicate;
    const auto& [rank, first] = *held->second.begin();
    if (const char* what = difference(*first, update)) {
      fail(ErrorCode::kInvalidArgument, "ranks ", rank, " and ", sync.rank,
           " sent inconsistent gradients for step ", sync.step, "; they differ in ", what);
    }
  }
  steps_[sync.step].emplace(sync.rank, std::make_shared<const UpdateShard>(update));
  return Taken::kHeld;
}

bool SyncAccumulator::is_complete(std::uint64_t num_steps) const {
  const auto held = steps_.find(num_steps);
  if (held == steps_.end()) return false;
  const auto wanted = held->second.begin()->second->sync->num_to_aggregate;
  return static_cast<int>(held->second.size()) >= wanted;
}

bool SyncAccumulator::drop_complete(std::uint64_t num_steps) {
  return is_complete(num_steps) && steps_.erase(num_steps) > 0;
}

std::optional<UpdateShard> SyncAccumulator::take_complete(std::uint64_t num_steps,
                                                          const Shape& shape) {
  if (!is_complete(num_steps)) return std::nullopt;
  const GivenByRank given = std::exchange(steps_[num_steps], {});
  steps_.erase(num_steps);
  UpdateShard update = *given.begin()->second;
  const auto divided = [divisor = update.sync->divisor](const Tensor& sum) {
    return divisor == 1.0 ? sum : divide_by(sum, divisor).dense();
  };
  if (update.rule == kAddOnce) {
    // All ranks send the same value, so the value of the first rank is used.
  } else if (update.rows) {
    std::vector<IndexedSlices> slices;
    for (const auto& [rank, each] : given) {
      slices.push_back({each->gradient, *each->rows, shape});
    }
    const IndexedSlices sum = sum_slices_canonically(slices, Device{});
    update.rows = sum.indices;
    update.gradient = divided(sum.values);
  } else {
    std::vector<Tensor> values;
    for (const auto& [rank, each] : given) values.push_back(each->gradient);
    update.gradient = divided(reduce_tensors_along_tree(ReduceOp::kSum, values, Device{}));
  }
  update.sync.reset();
  return update;
}

bool SyncAccumulator::has_given(std::uint64_t step, int rank) const {
  const auto held = steps_.find(step);
  return held != steps_.end() && held->second.contains(rank);
}

namespace {

/// Returns `args` restricted to elements [first, first + count). Appends the address of these
/// elements in each slot to `slots`.
UpdateArgs part_of(const UpdateArgs& args, std::size_t first, std::size_t count,
                   std::vector<void*>& slots) {
  const std::size_t offset = first * size_of(args.dtype);
  for (void* const slot : args.slots_data) slots.push_back(static_cast<std::byte*>(slot) + offset);
  return {args.dtype,
          count,
          static_cast<std::byte*>(args.weights_data) + offset,
          slots,
          static_cast<const std::byte*>(args.gradient_data) + offset,
          args.scalars};
}

}  // namespace

StoredShard::StoredShard(ShardSpec shard_spec, const Tensor& initial_value,
                         std::uint64_t first_version)
    : spec(std::move(shard_spec)),
      id(spec.id()),
      value(initial_value, Device{}),
      version(first_version) {}

OperationAnswer StoredShard::answer() const { return {.version = version, .num_steps = num_steps}; }

OperationAnswer StoredShard::read(const ReadShard& read) const {
  OperationAnswer result = answer();
  if (read.have_version != version) result.value = value.read();
  return result;
}

OperationAnswer StoredShard::read(const ReadRows& read) const {
  OperationAnswer result = answer();
  const auto rows = read.rows.host_span<std::int64_t>();
  const Tensor whole = value.read();
  MutableTensor values(spec.whole_shape.with_dim(0, static_cast<std::int64_t>(rows.size())),
                       spec.dtype, Device{});
  const std::size_t row_bytes = rows.empty() ? 0 : values.num_bytes() / rows.size();
  std::byte* out = values.data();
  for (const std::int64_t row : rows) {
    if (row_bytes == 0) break;
    std::memcpy(out, whole.bytes().data() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    out += row_bytes;
  }
  result.value = values.freeze();
  return result;
}

void StoredShard::update(const UpdateRule& rule, std::span<StoredShard* const> slots,
                         const UpdateShard& update) {
  std::vector<VariableComponent*> components;
  for (StoredShard* slot : slots) components.push_back(&slot->value);
  const Gradient gradient =
      update.rows ? Gradient(IndexedSlices{update.gradient, *update.rows, spec.shape()})
                  : Gradient(update.gradient);
  const HalvedRule halved(rule);
  const UpdateRule& applied = rule.uses_norms() ? rule : halved;
  VariableComponent::update(value, components, applied, gradient, update.scalars);
  ++version;
  for (StoredShard* slot : slots) ++slot->version;
}

std::vector<int> StoredShard::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (!accumulator.has_given(num_steps, rank)) missing.push_back(rank);
  }
  return missing;
}

std::optional<Error> StoredShard::why_no_step(const std::set<int>& ended) const {
  std::vector<int> gone;
  for (const int rank : ended) {
    if (rank < num_ranks && !accumulator.has_given(num_steps, rank)) gone.push_back(rank);
  }
  const int num_left = num_ranks - static_cast<int>(gone.size());
  if (num_left >= num_to_aggregate) return std::nullopt;
  return Error(ErrorCode::kOutOfRange,
               concat(spec.to_string(), ": step ", num_steps,
                      " cannot complete: ", gone.size() == 1 ? "worker " : "workers ", join(gone),
                      gone.size() == 1 ? " has" : " have", " ended; expected gradients from ",
                      num_to_aggregate, " of ", num_ranks, " workers, but at most ", num_left,
                      " can send one; end training on all workers after the same number of steps, ",
                      "which optimizer.iterations() counts"));
}

void HalvedRule::apply(const UpdateArgs& args) const {
  constexpr std::size_t kLineOfElements = 64;
  const bool is_long = args.count * size_of(args.dtype) >= kWorthSplitting;
  if (!is_long || num_hardware_threads() < 2) return rule_.apply(args);
  const std::size_t half = args.count / 2 / kLineOfElements * kLineOfElements;
  std::vector<void*> first_slots, second_slots;
  const UpdateArgs first = part_of(args, 0, half, first_slots);
  const UpdateArgs second = part_of(args, half, args.count - half, second_slots);
  std::exception_ptr problem;
  {
    const auto helper = Executor::system().start("ps-update", [&] {
      try {
        rule_.apply(second);
      } catch (...) {
        problem = std::current_exception();
      }
    });
    rule_.apply(first);  // if this throws, helper's destructor still waits
  }
  if (problem) std::rethrow_exception(problem);
}

}  // namespace tutti::internal
