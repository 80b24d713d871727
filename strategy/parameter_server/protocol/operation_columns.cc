// Columns of operations and answers: what may share a message, and what fits together.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "strategy/parameter_server/protocol/message.h"
#include "strategy/parameter_server/protocol/operation_message.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr unsigned char kHasValue = 1, kWasAppliedBefore = 2;

template <class Column>
std::size_t length(const Column& column) {
  return static_cast<std::size_t>(column.size());
}

void check_length(std::size_t got, std::size_t expected, const char* what) {
  if (got != expected) refuse_batch("expected ", expected, " ", what, " in a column, got ", got);
}

// Bits: what is equal may stand for the other.
bool are_same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
bool are_same(const UpdateScalars& a, const UpdateScalars& b) {
  return are_same(a.learning_rate, b.learning_rate) && a.iteration == b.iteration &&
         are_same(a.gradient_scale, b.gradient_scale) && are_same(a.weight_decay, b.weight_decay);
}

bool may_share(const ReadShard& a, const ReadShard& b) {
  return a.at_least_steps == b.at_least_steps;
}
bool may_share(const AssignShard& a, const AssignShard& b) { return a.op == b.op; }
bool may_share(const UpdateShard& a, const UpdateShard& b) {
  return a.rows.has_value() == b.rows.has_value() && a.slots.size() == b.slots.size() &&
         a.rule == b.rule && are_same(a.scalars, b.scalars) && a.sync == b.sync;
}

/// How many operations from `first`, which is the first of them, on fit in one message.
template <class Op>
std::size_t length_of_run(const Op& first, std::span<const Operation> operations) {
  std::size_t count = 1;
  for (; count < operations.size(); ++count) {
    const Op* const next = std::get_if<Op>(&operations[count]);
    if (next == nullptr || !may_share(first, *next)) break;
  }
  return count;
}

/// Fills a column of tensors' heads; elements go into the payload.
class HeadWriter {
 public:
  HeadWriter(std::size_t count, PayloadWriter& payload, v1::TensorHeads& out)
      : payload_(payload), dims_(*out.mutable_dims()), kinds_(*out.mutable_kinds()) {
    dims_.Reserve(static_cast<int>(count));
    kinds_.reserve(2 * count);
  }

  void put(const Tensor& tensor) {
    if (!tensor.defined()) {
      fail(ErrorCode::kInvalidArgument, "a batch of operations: a tensor is undefined");
    }
    const Shape& shape = tensor.shape();
    kinds_.push_back(static_cast<char>(tensor.dtype()));
    kinds_.push_back(static_cast<char>(shape.rank()));
    for (const std::int64_t dim : shape) dims_.Add(dim);
    payload_.put(tensor);
  }

 private:
  PayloadWriter& payload_;
  google::protobuf::RepeatedField<std::int64_t>& dims_;
  std::string& kinds_;
};

/// Reads such a column, one tensor after the other.
class HeadReader {
 public:
  HeadReader(const v1::TensorHeads& in, std::size_t count, PayloadReader& payload)
      : kinds_(in.kinds()), dims_(in.dims().data(), length(in.dims())), payload_(payload) {
    check_length(kinds_.size(), 2 * count, "types and ranks");
    std::size_t num_dims = 0;
    for (std::size_t i = 0; i < count; ++i) num_dims += byte_at(2 * i + 1);
    check_length(dims_.size(), num_dims, "dimensions");
  }
  Tensor take() {
    const std::size_t dtype = byte_at(next_), rank = byte_at(next_ + 1);
    const auto dims = dims_.first(rank);
    dims_ = dims_.subspan(rank);
    next_ += 2;
    return payload_.take(dtype, dims);
  }

 private:
  std::size_t byte_at(std::size_t place) const { return static_cast<unsigned char>(kinds_[place]); }
  const std::string& kinds_;
  std::span<const std::int64_t> dims_;
  PayloadReader& payload_;
  std::size_t next_ = 0;
};

void put_scalars(const UpdateScalars& scalars, v1::UpdateScalars& out) {
  out.set_learning_rate(scalars.learning_rate);
  out.set_iteration(scalars.iteration);
  out.set_gradient_scale(scalars.gradient_scale);
  out.set_weight_decay(scalars.weight_decay);
}

UpdateScalars get_scalars(const v1::UpdateScalars& in) {
  UpdateScalars scalars;
  scalars.learning_rate = in.learning_rate();
  scalars.iteration = in.iteration();
  scalars.gradient_scale = in.gradient_scale();
  scalars.weight_decay = in.weight_decay();
  return scalars;
}

void put_sync(const SyncSpec& sync, v1::SyncSpec& out) {
  out.set_step(sync.step), out.set_rank(sync.rank), out.set_num_ranks(sync.num_ranks);
  out.set_num_to_aggregate(sync.num_to_aggregate), out.set_divisor(sync.divisor);
}

SyncSpec get_sync(const v1::SyncSpec& in) {
  return {in.step(), in.rank(), in.num_ranks(), in.num_to_aggregate(), in.divisor()};
}

void put(std::span<const Operation> run, const ReadShard& first, PayloadWriter&,
         v1::Operation& out) {
  v1::ReadShards& reads = *out.mutable_reads();
  reads.set_at_least_steps(first.at_least_steps);
  reads.mutable_shards()->Reserve(static_cast<int>(run.size()));
  reads.mutable_have_versions()->Reserve(static_cast<int>(run.size()));
  for (const Operation& each : run) {
    const auto& read = std::get<ReadShard>(each);
    reads.add_shards(read.shard), reads.add_have_versions(read.have_version);
  }
}

void put(std::span<const Operation> run, const AssignShard& first, PayloadWriter& payload,
         v1::Operation& out) {
  v1::AssignShards& assigns = *out.mutable_assigns();
  assigns.set_op(static_cast<std::uint32_t>(first.op));
  assigns.mutable_shards()->Reserve(static_cast<int>(run.size()));
  HeadWriter values(run.size(), payload, *assigns.mutable_values());
  for (const Operation& each : run) {
    const auto& assign = std::get<AssignShard>(each);
    assigns.add_shards(assign.shard);
    values.put(assign.value);
  }
}

void put(std::span<const Operation> run, const UpdateShard& first, PayloadWriter& payload,
         v1::Operation& out) {
  v1::UpdateShards& updates = *out.mutable_updates();
  updates.set_num_slots(static_cast<std::uint32_t>(first.slots.size()));
  updates.set_rule(first.rule.text());
  put_scalars(first.scalars, *updates.mutable_scalars());
  if (first.sync) put_sync(*first.sync, *updates.mutable_sync());
  updates.mutable_shards()->Reserve(static_cast<int>(run.size()));
  updates.mutable_computed_at_versions()->Reserve(static_cast<int>(run.size()));
  std::optional<HeadWriter> rows;
  if (first.rows) rows.emplace(run.size(), payload, *updates.mutable_rows());
  HeadWriter gradients(run.size(), payload, *updates.mutable_gradients());
  for (const Operation& each : run) {
    const auto& update = std::get<UpdateShard>(each);
    updates.add_shards(update.shard);
    for (const ShardId slot : update.slots) updates.add_slots(slot);
    updates.add_computed_at_versions(update.computed_at_version);
    if (rows) rows->put(*update.rows);
    gradients.put(update.gradient);
  }
}

}  // namespace

void check_count(std::size_t count) {
  if (count <= kMostOperations) return;
  refuse_batch("at most ", kMostOperations, " operations were expected, got ", count);
}

std::size_t put_run(std::span<const Operation> operations, PayloadWriter& payload,
                    v1::Operation& out) {
  const auto put_of = [&]<class Op>(const Op& first) -> std::size_t {
    if constexpr (GoesInColumns<Op>) {
      const std::size_t count = length_of_run(first, operations);
      put(operations.first(count), first, payload, out);
      return count;
    }
    return 0;
  };
  return std::visit(put_of, operations.front());
}

void get_run(const v1::ReadShards& in, std::vector<Operation>& out) {
  const std::size_t count = length(in.shards());
  check_count(out.size() + count);
  check_length(length(in.have_versions()), count, "versions");
  for (int i = 0; i < in.shards_size(); ++i) {
    out.emplace_back(ReadShard{in.shards(i), in.have_versions(i), in.at_least_steps()});
  }
}

void get_run(const v1::AssignShards& in, PayloadReader& payload, std::vector<Operation>& out) {
  const std::size_t count = length(in.shards());
  check_count(out.size() + count);
  const AssignOp op = checked_enum(in.op(), AssignOp::kAssign, AssignOp::kSubtract);
  HeadReader values(in.values(), count, payload);
  for (const ShardId shard : in.shards()) {
    out.emplace_back(AssignShard{shard, op, values.take()});
  }
}

void get_run(const v1::UpdateShards& in, PayloadReader& payload, std::vector<Operation>& out) {
  const std::size_t count = length(in.shards()), num_slots = in.num_slots();
  check_count(out.size() + count);
  if (num_slots > kMostSlots) {
    refuse_batch("at most ", kMostSlots, " slots were expected, got ", num_slots);
  }
  if (in.rule().size() > kLongestRule) {
    refuse_batch("a text of ", in.rule().size(), " bytes; expected ", kLongestRule);
  }
  check_length(length(in.slots()), count * num_slots, "slots");
  check_length(length(in.computed_at_versions()), count, "versions");
  std::optional<HeadReader> rows;
  if (in.has_rows()) rows.emplace(in.rows(), count, payload);
  HeadReader gradients(in.gradients(), count, payload);
  UpdateShard shared;
  shared.rule = in.rule();
  shared.scalars = get_scalars(in.scalars());
  if (in.has_sync()) shared.sync = get_sync(in.sync());
  auto slots = in.slots().begin();
  for (int i = 0; i < in.shards_size(); ++i) {
    auto& update = std::get<UpdateShard>(out.emplace_back(shared));
    update.shard = in.shards(i);
    const auto end = slots + static_cast<std::ptrdiff_t>(num_slots);
    update.slots.assign(slots, end);
    slots = end;
    update.computed_at_version = in.computed_at_versions(i);
    if (rows) update.rows = rows->take();
    update.gradient = gradients.take();
  }
}

void put_answers(std::span<const OperationAnswer> answers, PayloadWriter& payload,
                 v1::OperationAnswers& out) {
  const auto num_values =
      std::ranges::count_if(answers, [](const auto& answer) { return answer.value.has_value(); });
  std::optional<HeadWriter> values;  // most answers to changes have none
  if (num_values > 0) {
    values.emplace(static_cast<std::size_t>(num_values), payload, *out.mutable_values());
  }
  std::string& flags = *out.mutable_flags();
  flags.reserve(answers.size());
  out.mutable_versions()->Reserve(static_cast<int>(answers.size()));
  out.mutable_num_steps()->Reserve(static_cast<int>(answers.size()));
  for (const OperationAnswer& answer : answers) {
    flags.push_back(static_cast<char>((answer.value ? kHasValue : 0) |
                                      (answer.was_applied_before ? kWasAppliedBefore : 0)));
    out.add_versions(answer.version), out.add_num_steps(answer.num_steps);
    if (answer.value) values->put(*answer.value);
  }
}

std::vector<OperationAnswer> get_answers(const v1::OperationAnswers& in, PayloadReader& payload) {
  const std::string& flags = in.flags();
  check_count(flags.size());
  check_length(length(in.versions()), flags.size(), "versions");
  check_length(length(in.num_steps()), flags.size(), "numbers of steps");
  const auto has_value = [](char flag) { return (flag & kHasValue) != 0; };
  const auto num_values = static_cast<std::size_t>(std::ranges::count_if(flags, has_value));
  HeadReader values(in.values(), num_values, payload);
  std::vector<OperationAnswer> answers(flags.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if ((flags[i] & ~(kHasValue | kWasAppliedBefore)) != 0) refuse_batch("an answer of no kind");
    if (has_value(flags[i])) answers[i].value = values.take();
    answers[i].version = in.versions(static_cast<int>(i));
    answers[i].num_steps = in.num_steps(static_cast<int>(i));
    answers[i].was_applied_before = (flags[i] & kWasAppliedBefore) != 0;
  }
  return answers;
}

}  // namespace tutti::internal
