// Operations as messages: one each, or many of a kind in columns.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/operation_message.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/protocol/message.h"
#include "tutti/strategy/parameter_server/protocol/operation_columns.h"

namespace tutti::internal {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "head of a batch: ", parts...);
}

std::string checked_text(const std::string& text, std::size_t longest) {
  if (text.size() > longest) refuse("a text of ", text.size(), " bytes; expected ", longest);
  return text;
}

Shape shape_of(const google::protobuf::RepeatedField<std::int64_t>& dims) {
  return checked_shape({dims.data(), static_cast<std::size_t>(dims.size())});
}

/// Fills messages; tensors go into the payload as they are met.
class Writer {
 public:
  explicit Writer(PayloadWriter& payload) : payload_(payload) {}

  void put(v1::TensorHead* head, const Tensor& tensor) { put_tensor(tensor, payload_, *head); }
  void put(v1::ShardSpec* out, const ShardSpec& spec) {
    out->set_variable(spec.variable);
    out->set_dtype(static_cast<std::uint32_t>(spec.dtype));
    for (const std::int64_t dim : spec.whole_shape) out->add_whole_dims(dim);
    out->set_shard(spec.shard), out->set_num_shards(spec.num_shards);
    out->set_first_row(spec.first_row), out->set_num_rows(spec.num_rows);
  }
  void put(v1::ValueGenerator* out, const ValueGenerator& generator) {
    out->set_kind(static_cast<std::uint32_t>(generator.kind));
    out->set_a(generator.a), out->set_b(generator.b);
    const RandomKey& key = generator.key;
    out->set_seed(key.seed), out->set_purpose(key.purpose);
    out->set_key_a(key.a), out->set_key_b(key.b), out->set_key_c(key.c);
    out->set_dtype(static_cast<std::uint32_t>(generator.dtype));
    for (const std::int64_t dim : generator.shape) out->add_dims(dim);
  }

  void put(v1::Operation* out, const CreateShard& o) {
    v1::CreateShard* create = out->mutable_create();
    put(create->mutable_spec(), o.spec);
    if (const auto* generator = std::get_if<ValueGenerator>(&o.initial_value)) {
      put(create->mutable_generator(), *generator);
    } else {
      put(create->mutable_value(), std::get<Tensor>(o.initial_value));
    }
  }
  void put(v1::Operation* out, const ReadShard& o) {
    v1::ReadShard* read = out->mutable_read();
    read->set_shard(o.shard), read->set_have_version(o.have_version);
    read->set_at_least_steps(o.at_least_steps);
  }
  void put(v1::Operation* out, const ReadRows& o) {
    v1::ReadRows* read = out->mutable_read_rows();
    read->set_shard(o.shard), read->set_at_least_steps(o.at_least_steps);
    put(read->mutable_rows(), o.rows);
  }
  void put(v1::Operation* out, const AssignShard& o) {
    v1::AssignShard* assign = out->mutable_assign();
    assign->set_shard(o.shard), assign->set_op(static_cast<std::uint32_t>(o.op));
    put(assign->mutable_value(), o.value);
  }
  void put(v1::Operation* out, const ScatterShard& o) {
    v1::ScatterShard* scatter = out->mutable_scatter();
    scatter->set_shard(o.shard), scatter->set_op(static_cast<std::uint32_t>(o.op));
    put(scatter->mutable_rows(), o.rows);
    put(scatter->mutable_values(), o.values);
  }
  void put(v1::Operation* out, const UpdateShard& o) {
    v1::UpdateShard* update = out->mutable_update();
    update->set_shard(o.shard), update->set_rule(o.rule.text());
    for (const ShardId slot : o.slots) update->add_slots(slot);
    put_scalars(o.scalars, *update->mutable_scalars());
    if (o.rows) put(update->mutable_rows(), *o.rows);
    put(update->mutable_gradient(), o.gradient);
    if (o.sync) put_sync(*o.sync, *update->mutable_sync());
    update->set_computed_at_version(o.computed_at_version);
  }
  void put(v1::Operation* out, const RestoreShard& o) {
    v1::RestoreShard* restore = out->mutable_restore();
    restore->set_shard(o.shard);
    put(restore->mutable_value(), o.value);
  }
  static void put(v1::Operation* out, const ReadStatistics&) { out->mutable_read_statistics(); }
  static void put(v1::Operation* out, const TellClock& o) {
    v1::TellClock* tell = out->mutable_tell_clock();
    tell->set_event(static_cast<std::uint32_t>(o.event)), tell->set_worker(o.worker);
    tell->set_clock(o.clock), tell->set_staleness(o.staleness);
  }

 private:
  PayloadWriter& payload_;
};

/// Reads messages in the order in which they were filled.
class Reader {
 public:
  explicit Reader(PayloadReader& payload) : payload_(payload) {}

  Tensor get(const v1::TensorHead& head) { return get_tensor(head, payload_); }
  static ShardSpec get(const v1::ShardSpec& in) {
    return {checked_text(in.variable(), kLongestVariableName),
            checked_dtype(in.dtype()),
            shape_of(in.whole_dims()),
            in.shard(),
            in.num_shards(),
            in.first_row(),
            in.num_rows()};
  }
  static ValueGenerator get(const v1::ValueGenerator& in) {
    return {
        checked_enum(in.kind(), ValueGenerator::Kind::kConstant, ValueGenerator::Kind::kIdentity),
        in.a(),
        in.b(),
        {in.seed(), in.purpose(), in.key_a(), in.key_b(), in.key_c()},
        checked_dtype(in.dtype()),
        shape_of(in.dims())};
  }

  Operation get(const v1::CreateShard& in) {
    if (in.has_generator()) return CreateShard{get(in.spec()), get(in.generator())};
    return CreateShard{get(in.spec()), get(in.value())};
  }
  Operation get(const v1::ReadShard& in) {
    return ReadShard{in.shard(), in.have_version(), in.at_least_steps()};
  }
  Operation get(const v1::ReadRows& in) {
    return ReadRows{in.shard(), get(in.rows()), in.at_least_steps()};
  }
  Operation get(const v1::AssignShard& in) {
    return AssignShard{in.shard(), checked_enum(in.op(), AssignOp::kAssign, AssignOp::kSubtract),
                       get(in.value())};
  }
  Operation get(const v1::ScatterShard& in) {
    const ScatterOp op = checked_enum(in.op(), ScatterOp::kAdd, ScatterOp::kUpdate);
    Tensor rows = get(in.rows());
    return ScatterShard{in.shard(), op, std::move(rows), get(in.values())};
  }
  Operation get(const v1::UpdateShard& in) {
    if (static_cast<std::size_t>(in.slots_size()) > kMostSlots) {
      refuse("at most ", kMostSlots, " slots were expected, got ", in.slots_size());
    }
    UpdateShard update;
    update.shard = in.shard();
    update.slots.assign(in.slots().begin(), in.slots().end());
    update.rule = checked_text(in.rule(), kLongestRule);
    update.scalars = get_scalars(in.scalars());
    if (in.has_rows()) update.rows = get(in.rows());
    update.gradient = get(in.gradient());
    if (in.has_sync()) update.sync = get_sync(in.sync());
    update.computed_at_version = in.computed_at_version();
    return update;
  }
  Operation get(const v1::RestoreShard& in) { return RestoreShard{in.shard(), get(in.value())}; }
  static Operation get(const v1::TellClock& in) {
    return TellClock{checked_enum(in.event(), TellClock::Event::kJoin, TellClock::Event::kAsk),
                     in.worker(), in.clock(), in.staleness()};
  }

  void get(const v1::Operation& in, std::vector<Operation>& out) {
    switch (in.kind_case()) {
      case v1::Operation::kCreate:
        out.push_back(get(in.create()));
        return;
      case v1::Operation::kRead:
        out.push_back(get(in.read()));
        return;
      case v1::Operation::kReadRows:
        out.push_back(get(in.read_rows()));
        return;
      case v1::Operation::kAssign:
        out.push_back(get(in.assign()));
        return;
      case v1::Operation::kScatter:
        out.push_back(get(in.scatter()));
        return;
      case v1::Operation::kUpdate:
        out.push_back(get(in.update()));
        return;
      case v1::Operation::kRestore:
        out.push_back(get(in.restore()));
        return;
      case v1::Operation::kReadStatistics:
        out.push_back(ReadStatistics{});
        return;
      case v1::Operation::kTellClock:
        out.push_back(get(in.tell_clock()));
        return;
      case v1::Operation::kReads:
        return get_run(in.reads(), out);
      case v1::Operation::kAssigns:
        return get_run(in.assigns(), payload_, out);
      case v1::Operation::kUpdates:
        return get_run(in.updates(), payload_, out);
      case v1::Operation::KIND_NOT_SET:
        break;
    }
    refuse("an operation of no kind");
  }

 private:
  PayloadReader& payload_;
};

void check_count(std::size_t count) {
  if (count <= kMostOperations) return;
  refuse("at most ", kMostOperations, " operations were expected, got ", count);
}

/// Those in columns, too; of what may be refused later at most kMostOperations.
std::size_t num_operations(const v1::OperationBatch& in) {
  int count = 0;
  for (const v1::Operation& each : in.operations()) {
    const int run =
        each.reads().shards_size() + each.assigns().shards_size() + each.updates().shards_size();
    count += std::min(std::max(run, 1), static_cast<int>(kMostOperations));
    if (count > static_cast<int>(kMostOperations)) return kMostOperations;
  }
  return static_cast<std::size_t>(count);
}

void check_limits(const Operation& operation) {
  const auto refuse = [](const auto&... parts) {
    fail(ErrorCode::kInvalidArgument, "a batch of operations: ", parts...);
  };
  if (const auto* create = std::get_if<CreateShard>(&operation)) {
    if (create->spec.variable.size() > kLongestVariableName) {
      refuse("a variable's name has ", create->spec.variable.size(), " characters; expected ",
             kLongestVariableName, " at most");
    }
  } else if (const auto* update = std::get_if<UpdateShard>(&operation)) {
    if (update->rule.size() > kLongestRule || update->slots.size() > kMostSlots) {
      refuse("the description of a rule has ", update->rule.size(), " characters and ",
             update->slots.size(), " slots; expected at most ", kLongestRule, " and ", kMostSlots);
    }
  }
}

}  // namespace

void put_batch(const OperationBatch& batch, PayloadWriter& payload, v1::OperationBatch& out) {
  if (batch.operations.size() > kMostOperations) {
    fail(ErrorCode::kInvalidArgument, "a batch of operations: expected at most ", kMostOperations,
         " operations, got ", batch.operations.size());
  }
  for (const Operation& operation : batch.operations) check_limits(operation);
  out.set_term(batch.term);
  out.set_stream_kind(static_cast<std::uint32_t>(batch.stream.kind));
  out.set_stream_id(batch.stream.id);
  out.set_stream_replica(batch.stream.replica);
  out.set_first_ordinal(batch.first_ordinal);
  out.set_finished_below(batch.finished_below);
  Writer writer(payload);
  for (std::span<const Operation> left = batch.operations; !left.empty();) {
    const std::size_t run = length_of_run(left);
    v1::Operation* const next = out.add_operations();
    if (run > 0) {
      put_run(left.first(run), payload, *next);
    } else {
      std::visit([&](const auto& each) { writer.put(next, each); }, left.front());
    }
    left = left.subspan(std::max<std::size_t>(run, 1));
  }
}

OperationBatch get_batch(const v1::OperationBatch& in, PayloadReader& payload) {
  check_count(static_cast<std::size_t>(in.operations_size()));
  OperationBatch batch;
  batch.term = in.term();
  batch.stream.kind =
      checked_enum(in.stream_kind(), UpdateStream::Kind::kClient, UpdateStream::Kind::kClosure);
  batch.stream.id = in.stream_id();
  batch.stream.replica = in.stream_replica();
  batch.first_ordinal = in.first_ordinal();
  batch.finished_below = in.finished_below();
  Reader reader(payload);
  batch.operations.reserve(num_operations(in));
  for (const v1::Operation& operation : in.operations()) {
    reader.get(operation, batch.operations);
    check_count(batch.operations.size());
  }
  return batch;
}

}  // namespace tutti::internal
