// Heads as messages of batch.proto.
// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/arena.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "batch.pb.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/head_codec.h"
#include "tutti/strategy/parameter_server/protocol/protobuf/operation_columns.h"

namespace tutti::internal {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "head of a batch: ", parts...);
}

template <class Enum>
Enum checked_enum(std::uint32_t number, Enum last) {
  if (number > static_cast<std::uint32_t>(last)) refuse(number, " names nothing");
  return static_cast<Enum>(number);
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

  void put(ps::TensorHead* head, const Tensor& tensor) {
    if (!tensor.defined()) {
      fail(ErrorCode::kInvalidArgument, "a batch of operations: a tensor is undefined");
    }
    head->set_dtype(static_cast<std::uint32_t>(tensor.dtype()));
    for (const std::int64_t dim : tensor.shape()) head->add_dims(dim);
    payload_.put(tensor);
  }
  void put(ps::ShardSpec* out, const ShardSpec& spec) {
    out->set_variable(spec.variable);
    out->set_dtype(static_cast<std::uint32_t>(spec.dtype));
    for (const std::int64_t dim : spec.whole_shape) out->add_whole_dims(dim);
    out->set_shard(spec.shard), out->set_num_shards(spec.num_shards);
    out->set_first_row(spec.first_row), out->set_num_rows(spec.num_rows);
  }
  void put(ps::Generator* out, const ValueGenerator& generator) {
    out->set_kind(static_cast<std::uint32_t>(generator.kind));
    out->set_a(generator.a), out->set_b(generator.b);
    const RandomKey& key = generator.key;
    out->set_seed(key.seed), out->set_purpose(key.purpose);
    out->set_key_a(key.a), out->set_key_b(key.b), out->set_key_c(key.c);
    out->set_dtype(static_cast<std::uint32_t>(generator.dtype));
    for (const std::int64_t dim : generator.shape) out->add_dims(dim);
  }

  void put(ps::Operation* out, const CreateShard& o) {
    ps::CreateShard* create = out->mutable_create();
    put(create->mutable_spec(), o.spec);
    if (const auto* generator = std::get_if<ValueGenerator>(&o.initial_value)) {
      put(create->mutable_generator(), *generator);
    } else {
      put(create->mutable_value(), std::get<Tensor>(o.initial_value));
    }
  }
  void put(ps::Operation* out, const ReadShard& o) {
    ps::ReadShard* read = out->mutable_read();
    read->set_shard(o.shard), read->set_have_version(o.have_version);
    read->set_at_least_steps(o.at_least_steps);
  }
  void put(ps::Operation* out, const ReadRows& o) {
    ps::ReadRows* read = out->mutable_read_rows();
    read->set_shard(o.shard), read->set_at_least_steps(o.at_least_steps);
    put(read->mutable_rows(), o.rows);
  }
  void put(ps::Operation* out, const AssignShard& o) {
    ps::AssignShard* assign = out->mutable_assign();
    assign->set_shard(o.shard), assign->set_op(static_cast<std::uint32_t>(o.op));
    put(assign->mutable_value(), o.value);
  }
  void put(ps::Operation* out, const ScatterShard& o) {
    ps::ScatterShard* scatter = out->mutable_scatter();
    scatter->set_shard(o.shard), scatter->set_op(static_cast<std::uint32_t>(o.op));
    put(scatter->mutable_rows(), o.rows);
    put(scatter->mutable_values(), o.values);
  }
  void put(ps::Operation* out, const UpdateShard& o) {
    ps::UpdateShard* update = out->mutable_update();
    update->set_shard(o.shard), update->set_rule(o.rule.text());
    for (const ShardId slot : o.slots) update->add_slots(slot);
    put_scalars(o.scalars, *update->mutable_scalars());
    if (o.rows) put(update->mutable_rows(), *o.rows);
    put(update->mutable_gradient(), o.gradient);
    if (o.sync) put_sync(*o.sync, *update->mutable_sync());
    update->set_computed_at_version(o.computed_at_version);
  }
  void put(ps::Operation* out, const RestoreShard& o) {
    ps::RestoreShard* restore = out->mutable_restore();
    restore->set_shard(o.shard);
    put(restore->mutable_value(), o.value);
  }
  static void put(ps::Operation* out, const ReadStatistics&) { out->mutable_read_statistics(); }
  static void put(ps::Operation* out, const TellClock& o) {
    ps::TellClock* tell = out->mutable_tell_clock();
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

  Tensor get(const ps::TensorHead& head) {
    return payload_.take(head.dtype(),
                         {head.dims().data(), static_cast<std::size_t>(head.dims_size())});
  }
  static ShardSpec get(const ps::ShardSpec& in) {
    return {checked_text(in.variable(), kLongestVariableName),
            checked_dtype(in.dtype()),
            shape_of(in.whole_dims()),
            in.shard(),
            in.num_shards(),
            in.first_row(),
            in.num_rows()};
  }
  static ValueGenerator get(const ps::Generator& in) {
    return {checked_enum(in.kind(), ValueGenerator::Kind::kIdentity),
            in.a(),
            in.b(),
            {in.seed(), in.purpose(), in.key_a(), in.key_b(), in.key_c()},
            checked_dtype(in.dtype()),
            shape_of(in.dims())};
  }

  Operation get(const ps::CreateShard& in) {
    if (in.has_generator()) return CreateShard{get(in.spec()), get(in.generator())};
    return CreateShard{get(in.spec()), get(in.value())};
  }
  Operation get(const ps::ReadShard& in) {
    return ReadShard{in.shard(), in.have_version(), in.at_least_steps()};
  }
  Operation get(const ps::ReadRows& in) {
    return ReadRows{in.shard(), get(in.rows()), in.at_least_steps()};
  }
  Operation get(const ps::AssignShard& in) {
    return AssignShard{in.shard(), checked_enum(in.op(), AssignOp::kSubtract), get(in.value())};
  }
  Operation get(const ps::ScatterShard& in) {
    const ScatterOp op = checked_enum(in.op(), ScatterOp::kUpdate);
    Tensor rows = get(in.rows());
    return ScatterShard{in.shard(), op, std::move(rows), get(in.values())};
  }
  Operation get(const ps::UpdateShard& in) {
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
  Operation get(const ps::RestoreShard& in) { return RestoreShard{in.shard(), get(in.value())}; }
  static Operation get(const ps::TellClock& in) {
    return TellClock{checked_enum(in.event(), TellClock::Event::kAsk), in.worker(), in.clock(),
                     in.staleness()};
  }

  void get(const ps::Operation& in, std::vector<Operation>& out) {
    switch (in.kind_case()) {
      case ps::Operation::kCreate:
        out.push_back(get(in.create()));
        return;
      case ps::Operation::kRead:
        out.push_back(get(in.read()));
        return;
      case ps::Operation::kReadRows:
        out.push_back(get(in.read_rows()));
        return;
      case ps::Operation::kAssign:
        out.push_back(get(in.assign()));
        return;
      case ps::Operation::kScatter:
        out.push_back(get(in.scatter()));
        return;
      case ps::Operation::kUpdate:
        out.push_back(get(in.update()));
        return;
      case ps::Operation::kRestore:
        out.push_back(get(in.restore()));
        return;
      case ps::Operation::kReadStatistics:
        out.push_back(ReadStatistics{});
        return;
      case ps::Operation::kTellClock:
        out.push_back(get(in.tell_clock()));
        return;
      case ps::Operation::kReads:
        return get_run(in.reads(), out);
      case ps::Operation::kAssigns:
        return get_run(in.assigns(), payload_, out);
      case ps::Operation::kUpdates:
        return get_run(in.updates(), payload_, out);
      case ps::Operation::KIND_NOT_SET:
        break;
    }
    refuse("an operation of no kind");
  }

 private:
  PayloadReader& payload_;
};

template <class Message>
std::vector<std::byte> bytes_of(const Message& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  if (!message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()))) {
    fail(ErrorCode::kInvalidArgument, "a batch of operations: its head is too long");
  }
  return bytes;
}

/// A message in an arena: a batch has several parts per operation, each of which would be memory of
/// its own.
template <class Message>
class InArena {
 public:
  Message& operator*() { return *message_; }

 private:
  static google::protobuf::ArenaOptions in_large_blocks() {
    google::protobuf::ArenaOptions options;
    options.max_block_size = std::size_t{64} << 10;  // the first ones are small
    return options;
  }
  google::protobuf::Arena arena_{in_large_blocks()};
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

template <class Message>
void parse(std::span<const std::byte> head, Message& message) {
  const bool fits = head.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max());
  if (fits && message.ParseFromArray(head.data(), static_cast<int>(head.size()))) return;
  refuse(head.size(), " bytes that are no message of batch.proto");
}

void check_count(std::size_t count) {
  if (count <= kMostOperations) return;
  refuse("at most ", kMostOperations, " operations were expected, got ", count);
}

/// Those in columns, too; of what may be refused later at most kMostOperations.
std::size_t num_operations(const ps::Batch& in) {
  int count = 0;
  for (const ps::Operation& each : in.operations()) {
    const int run =
        each.reads().shards_size() + each.assigns().shards_size() + each.updates().shards_size();
    count += std::min(std::max(run, 1), static_cast<int>(kMostOperations));
    if (count > static_cast<int>(kMostOperations)) return kMostOperations;
  }
  return static_cast<std::size_t>(count);
}

}  // namespace

bool has_protobuf_heads() { return true; }

std::vector<std::byte> write_protobuf_head(const OperationBatch& batch, PayloadWriter& payload) {
  InArena<ps::Batch> message;
  ps::Batch& out = *message;
  out.set_term(batch.term);
  out.set_stream_kind(static_cast<std::uint32_t>(batch.stream.kind));
  out.set_stream_id(batch.stream.id);
  out.set_stream_replica(batch.stream.replica);
  out.set_first_ordinal(batch.first_ordinal);
  out.set_finished_below(batch.finished_below);
  Writer writer(payload);
  for (std::span<const Operation> left = batch.operations; !left.empty();) {
    const std::size_t run = length_of_run(left);
    ps::Operation* const next = out.add_operations();
    if (run > 0) {
      put_run(left.first(run), payload, *next);
    } else {
      std::visit([&](const auto& each) { writer.put(next, each); }, left.front());
    }
    left = left.subspan(std::max<std::size_t>(run, 1));
  }
  return bytes_of(out);
}

OperationBatch read_protobuf_batch(std::span<const std::byte> head, PayloadReader& payload) {
  InArena<ps::Batch> message;
  ps::Batch& in = *message;
  parse(head, in);
  check_count(static_cast<std::size_t>(in.operations_size()));
  OperationBatch batch;
  batch.term = in.term();
  batch.stream.kind = checked_enum(in.stream_kind(), UpdateStream::Kind::kClosure);
  if (in.stream_kind() == 0) refuse("its stream is neither a client's nor a closure's");
  batch.stream.id = in.stream_id();
  batch.stream.replica = in.stream_replica();
  batch.first_ordinal = in.first_ordinal();
  batch.finished_below = in.finished_below();
  Reader reader(payload);
  batch.operations.reserve(num_operations(in));
  for (const ps::Operation& operation : in.operations()) {
    reader.get(operation, batch.operations);
    check_count(batch.operations.size());
  }
  return batch;
}

std::vector<std::byte> write_protobuf_head(const std::vector<OperationAnswer>& answers,
                                           PayloadWriter& payload) {
  InArena<ps::Answers> message;
  ps::Answers& out = *message;
  put_answers(answers, payload, out);
  return bytes_of(out);
}

std::vector<OperationAnswer> read_protobuf_answers(std::span<const std::byte> head,
                                                   PayloadReader& payload) {
  InArena<ps::Answers> message;
  ps::Answers& in = *message;
  parse(head, in);
  return get_answers(in, payload);
}

}  // namespace tutti::internal
