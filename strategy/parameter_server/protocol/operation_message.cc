// Operations as messages, one each or many of a kind in columns; and as packets.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/operation_message.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "strategy/parameter_server/protocol/message.h"

namespace tutti::internal {
namespace {

std::string checked_text(const std::string& text, std::size_t longest) {
  if (text.size() > longest) refuse_batch("a text of ", text.size(), " bytes; expected ", longest);
  return text;
}

Shape shape_of(const google::protobuf::RepeatedField<std::int64_t>& dims) {
  return checked_shape({dims.data(), static_cast<std::size_t>(dims.size())});
}

void put_spec(const ShardSpec& spec, v1::ShardSpec& out) {
  out.set_variable(spec.variable);
  out.set_dtype(static_cast<std::uint32_t>(spec.dtype));
  for (const std::int64_t dim : spec.whole_shape) out.add_whole_dims(dim);
  out.set_shard(spec.shard), out.set_num_shards(spec.num_shards);
  out.set_first_row(spec.first_row), out.set_num_rows(spec.num_rows);
}

ShardSpec get_spec(const v1::ShardSpec& in) {
  return {checked_text(in.variable(), kLongestVariableName),
          checked_dtype(in.dtype()),
          shape_of(in.whole_dims()),
          in.shard(),
          in.num_shards(),
          in.first_row(),
          in.num_rows()};
}

void put_generator(const ValueGenerator& generator, v1::ValueGenerator& out) {
  out.set_kind(static_cast<std::uint32_t>(generator.kind));
  out.set_a(generator.a), out.set_b(generator.b);
  const RandomKey& key = generator.key;
  out.set_seed(key.seed), out.set_purpose(key.purpose);
  out.set_key_a(key.a), out.set_key_b(key.b), out.set_key_c(key.c);
  out.set_dtype(static_cast<std::uint32_t>(generator.dtype));
  for (const std::int64_t dim : generator.shape) out.add_dims(dim);
}

ValueGenerator get_generator(const v1::ValueGenerator& in) {
  return {checked_enum(in.kind(), ValueGenerator::Kind::kConstant, ValueGenerator::Kind::kIdentity),
          in.a(),
          in.b(),
          {in.seed(), in.purpose(), in.key_a(), in.key_b(), in.key_c()},
          checked_dtype(in.dtype()),
          shape_of(in.dims())};
}

// Of operations that have no columns: tensors go into the payload as they are met, and come out in
// the same order.

void put(const CreateShard& o, PayloadWriter& payload, v1::Operation& out) {
  v1::CreateShard& create = *out.mutable_create();
  put_spec(o.spec, *create.mutable_spec());
  if (const auto* generator = std::get_if<ValueGenerator>(&o.initial_value)) {
    put_generator(*generator, *create.mutable_generator());
  } else {
    put_tensor(std::get<Tensor>(o.initial_value), payload, *create.mutable_value());
  }
}

Operation get(const v1::CreateShard& in, PayloadReader& payload) {
  if (in.has_generator()) return CreateShard{get_spec(in.spec()), get_generator(in.generator())};
  return CreateShard{get_spec(in.spec()), get_tensor(in.value(), payload)};
}

void put(const ReadRows& o, PayloadWriter& payload, v1::Operation& out) {
  v1::ReadRows& read = *out.mutable_read_rows();
  read.set_shard(o.shard), read.set_at_least_steps(o.at_least_steps);
  put_tensor(o.rows, payload, *read.mutable_rows());
}

void put(const ScatterShard& o, PayloadWriter& payload, v1::Operation& out) {
  v1::ScatterShard& scatter = *out.mutable_scatter();
  scatter.set_shard(o.shard), scatter.set_op(static_cast<std::uint32_t>(o.op));
  put_tensor(o.rows, payload, *scatter.mutable_rows());
  put_tensor(o.values, payload, *scatter.mutable_values());
}

Operation get(const v1::ScatterShard& in, PayloadReader& payload) {
  const ScatterOp op = checked_enum(in.op(), ScatterOp::kAdd, ScatterOp::kUpdate);
  Tensor rows = get_tensor(in.rows(), payload);
  return ScatterShard{in.shard(), op, std::move(rows), get_tensor(in.values(), payload)};
}

void put(const ReadStatistics&, PayloadWriter&, v1::Operation& out) {
  out.mutable_read_statistics();
}

void put(const ReportWorker& o, PayloadWriter&, v1::Operation& out) {
  v1::ReportWorker& report = *out.mutable_report_worker();
  report.set_worker(o.worker), report.set_has_ended(o.has_ended);
}

void put(const StoreOrder& o, PayloadWriter&, v1::Operation& out) {
  v1::StoreOrder& order = *out.mutable_order();
  order.set_kind(static_cast<std::uint32_t>(o.kind));
  order.set_run(o.run), order.set_generation(o.generation);
  order.set_number(o.number);
}

StoreOrder get(const v1::StoreOrder& in) {
  using Kind = StoreOrder::Kind;
  return {checked_enum(in.kind(), Kind::kOpen, Kind::kRelease), in.run(), in.generation(),
          in.number()};
}

/// Appends what the message says, one operation or a run of them.
void get_operations(const v1::Operation& in, PayloadReader& payload, std::vector<Operation>& out) {
  switch (in.kind_case()) {
    case v1::Operation::kCreate:
      out.push_back(get(in.create(), payload));
      return;
    case v1::Operation::kReadRows:
      out.push_back(ReadRows{in.read_rows().shard(), get_tensor(in.read_rows().rows(), payload),
                             in.read_rows().at_least_steps()});
      return;
    case v1::Operation::kScatter:
      out.push_back(get(in.scatter(), payload));
      return;
    case v1::Operation::kReadStatistics:
      out.push_back(ReadStatistics{});
      return;
    case v1::Operation::kReportWorker:
      out.push_back(ReportWorker{in.report_worker().worker(), in.report_worker().has_ended()});
      return;
    case v1::Operation::kOrder:
      out.push_back(get(in.order()));
      return;
    case v1::Operation::kReads:
      return get_run(in.reads(), out);
    case v1::Operation::kAssigns:
      return get_run(in.assigns(), payload, out);
    case v1::Operation::kUpdates:
      return get_run(in.updates(), payload, out);
    case v1::Operation::KIND_NOT_SET:
      break;
  }
  refuse_batch("an operation of no kind");
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
  out.set_run(batch.run);
  out.set_stream_kind(static_cast<std::uint32_t>(batch.stream.kind));
  out.set_stream_id(batch.stream.id);
  out.set_stream_replica(batch.stream.replica);
  out.set_first_ordinal(batch.first_ordinal);
  out.set_finished_below(batch.finished_below);
  for (std::span<const Operation> left = batch.operations; !left.empty();) {
    v1::Operation& next = *out.add_operations();
    const std::size_t run = put_run(left, payload, next);
    const auto put_one = [&]<class Op>(const Op& only) {
      if constexpr (!GoesInColumns<Op>) put(only, payload, next);
    };
    if (run == 0) std::visit(put_one, left.front());
    left = left.subspan(std::max<std::size_t>(run, 1));
  }
}

OperationBatch get_batch(const v1::OperationBatch& in, PayloadReader& payload) {
  check_count(static_cast<std::size_t>(in.operations_size()));
  OperationBatch batch;
  batch.run = in.run();
  batch.stream.kind =
      checked_enum(in.stream_kind(), UpdateStream::Kind::kClient, UpdateStream::Kind::kClosure);
  batch.stream.id = in.stream_id();
  batch.stream.replica = in.stream_replica();
  batch.first_ordinal = in.first_ordinal();
  batch.finished_below = in.finished_below();
  batch.operations.reserve(num_operations(in));
  for (const v1::Operation& operation : in.operations()) {
    get_operations(operation, payload, batch.operations);
    check_count(batch.operations.size());
  }
  return batch;
}

Packet encode(const OperationBatch& batch) {
  return packet_of<v1::OperationBatch>(
      [&](auto& message, auto& payload) { put_batch(batch, payload, message); });
}
OperationBatch decode_batch(const Packet& packet) {
  return read_packet<v1::OperationBatch>(packet, get_batch, InPlace::kAll);
}

Tensor encode_specs(const std::vector<ShardSpec>& specs) {
  InArena<v1::ShardSpecs> message;
  for (const ShardSpec& each : specs) put_spec(each, *message->add_specs());
  const std::vector<std::byte> bytes =
      serialized(*message, std::numeric_limits<std::int32_t>::max());
  std::vector<std::uint8_t> elements(bytes.size());
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return Tensor::from(Shape{static_cast<std::int64_t>(elements.size())}, elements);
}

std::vector<ShardSpec> decode_specs(const Tensor& bytes) {
  InArena<v1::ShardSpecs> message;
  parse(std::as_bytes(bytes.host_span<std::uint8_t>()), *message);
  std::vector<ShardSpec> specs;
  for (const v1::ShardSpec& each : message->specs()) specs.push_back(get_spec(each));
  return specs;
}

Packet encode(const std::vector<OperationAnswer>& answers) {
  return packet_of<v1::OperationAnswers>(
      [&](auto& message, auto& payload) { put_answers(answers, payload, message); });
}
std::vector<OperationAnswer> decode_answers(const Packet& packet) {
  return read_packet<v1::OperationAnswers>(packet, get_answers);
}

}  // namespace tutti::internal
