// Heads as little-endian numbers, in the order of the declarations in operation.h.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/head_codec.h"

namespace tutti::internal {
namespace {

class Writer {
 public:
  explicit Writer(PayloadWriter& payload) : payload_(payload) {}
  std::vector<std::byte> take() { return std::move(out_.bytes()); }

  void u8(std::uint64_t value) { out_.number(static_cast<std::uint8_t>(value)); }
  void put(bool value) { u8(value ? 1 : 0); }
  void put(std::uint64_t value) { out_.number(value); }
  void put(std::int64_t value) { out_.number(static_cast<std::uint64_t>(value)); }
  void put(int value) { out_.number(static_cast<std::uint32_t>(value)); }
  void put(std::uint32_t value) { out_.number(value); }
  void put(double value) { out_.number(std::bit_cast<std::uint64_t>(value)); }
  void put(const std::string& text) { out_.text(text); }
  void put(const SharedText& text) { out_.text(text.text()); }
  void put(DType dtype) { u8(static_cast<std::uint8_t>(dtype)); }
  void put(const Shape& shape) {
    u8(static_cast<std::uint64_t>(shape.rank()));
    for (const std::int64_t dim : shape) put(dim);
  }
  void put(const Tensor& tensor) {
    if (!tensor.defined()) {
      fail(ErrorCode::kInvalidArgument, "a batch of operations: a tensor is undefined");
    }
    put(tensor.dtype()), put(tensor.shape());
    payload_.put(tensor);
  }

  void put(const ShardSpec& s) {
    put(s.variable), put(s.dtype), put(s.whole_shape), put(s.shard), put(s.num_shards);
    put(s.first_row), put(s.num_rows);
  }
  void put(const ValueGenerator& g) {
    u8(static_cast<std::uint64_t>(g.kind));
    put(g.a), put(g.b), put(g.key.seed), put(g.key.purpose), put(g.key.a), put(g.key.b);
    put(g.key.c), put(g.dtype), put(g.shape);
  }
  void put(const CreateShard& o) {
    put(o.spec), u8(o.initial_value.index());
    std::visit([this](const auto& value) { put(value); }, o.initial_value);
  }
  void put(const ReadShard& o) { put(o.shard), put(o.have_version), put(o.at_least_steps); }
  void put(const ReadRows& o) { put(o.shard), put(o.rows), put(o.at_least_steps); }
  void put(const AssignShard& o) {
    put(o.shard), u8(static_cast<std::uint64_t>(o.op)), put(o.value);
  }
  void put(const ScatterShard& o) {
    put(o.shard), u8(static_cast<std::uint64_t>(o.op)), put(o.rows), put(o.values);
  }
  void put(const UpdateScalars& s) {
    put(s.learning_rate), put(s.iteration), put(s.gradient_scale), put(s.weight_decay);
  }
  void put(const SyncSpec& s) {
    put(s.step), put(s.rank), put(s.num_ranks), put(s.num_to_aggregate), put(s.divisor);
  }
  void put(const UpdateShard& o) {
    put(o.shard), u8(o.slots.size());
    for (const ShardId slot : o.slots) put(slot);
    put(o.rule), put(o.scalars), put(o.rows.has_value());
    if (o.rows) put(*o.rows);
    put(o.gradient), put(o.sync.has_value());
    if (o.sync) put(*o.sync);
    put(o.computed_at_version);
  }
  void put(const RestoreShard& o) { put(o.shard), put(o.value); }
  void put(const ReadStatistics&) {}
  void put(const TellClock& o) {
    u8(static_cast<std::uint64_t>(o.event)), put(o.worker), put(o.clock), put(o.staleness);
  }
  void put(const OperationAnswer& a) {
    put(a.value.has_value());
    if (a.value) put(*a.value);
    put(a.version), put(a.num_steps), put(a.was_applied_before);
  }

 private:
  ByteWriter out_;
  PayloadWriter& payload_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> head, PayloadReader& payload) : in_(head), payload_(payload) {}

  void finish() const {
    if (!in_.is_complete()) refuse("it has another length");
  }
  /// A number of at most `most`.
  std::uint64_t u8(std::uint64_t most) {
    const std::uint64_t value = in_.number<std::uint8_t>();
    if (in_.failed() || value > most) refuse("a number of at most ", most, " is ", value);
    return value;
  }
  std::uint32_t count(std::size_t most) {
    const auto value = in_.number<std::uint32_t>();
    if (in_.failed() || value > most) refuse("at most ", most, " were expected, got ", value);
    return value;
  }

  void get(bool& value) { value = u8(1) != 0; }
  void get(std::uint64_t& value) { value = in_.number<std::uint64_t>(), check(); }
  void get(std::uint32_t& value) { value = in_.number<std::uint32_t>(), check(); }
  void get(std::int64_t& value) {
    value = static_cast<std::int64_t>(in_.number<std::uint64_t>()), check();
  }
  void get(int& value) { value = static_cast<int>(in_.number<std::uint32_t>()), check(); }
  void get(double& value) { value = std::bit_cast<double>(in_.number<std::uint64_t>()), check(); }
  void get(std::string& text, std::size_t longest) { text = in_.text(longest), check(); }
  /// Most batches have one rule.
  void get_rule(SharedText& rule) {
    std::string text;
    get(text, kLongestRule);
    if (text != rule_.text()) rule_ = std::move(text);
    rule = rule_;
  }
  template <class Enum>
  void get_enum(Enum& value, Enum last) {
    value = static_cast<Enum>(u8(static_cast<std::uint64_t>(last)));
  }
  void get(DType& dtype) { get_enum(dtype, DType::kFloat16); }
  void get(Shape& shape) { shape = checked_shape(dims()); }
  void get(Tensor& tensor) {
    DType dtype{};
    get(dtype);
    tensor = payload_.take(static_cast<std::uint64_t>(dtype), dims());
  }
  template <class Value>
  void get(std::optional<Value>& value) {
    if (u8(1) != 0) get(value.emplace());
  }

  void get(ShardSpec& s) {
    get(s.variable, kLongestVariableName), get(s.dtype), get(s.whole_shape), get(s.shard);
    get(s.num_shards), get(s.first_row), get(s.num_rows);
  }
  void get(ValueGenerator& g) {
    get_enum(g.kind, ValueGenerator::Kind::kIdentity);
    get(g.a), get(g.b), get(g.key.seed), get(g.key.purpose), get(g.key.a), get(g.key.b);
    get(g.key.c), get(g.dtype), get(g.shape);
  }
  void get(CreateShard& o) {
    get(o.spec);
    if (u8(1) == 0) {
      get(o.initial_value.emplace<ValueGenerator>());
    } else {
      get(o.initial_value.emplace<Tensor>());
    }
  }
  void get(ReadShard& o) { get(o.shard), get(o.have_version), get(o.at_least_steps); }
  void get(ReadRows& o) { get(o.shard), get(o.rows), get(o.at_least_steps); }
  void get(AssignShard& o) { get(o.shard), get_enum(o.op, AssignOp::kSubtract), get(o.value); }
  void get(ScatterShard& o) {
    get(o.shard), get_enum(o.op, ScatterOp::kUpdate), get(o.rows), get(o.values);
  }
  void get(UpdateScalars& s) {
    get(s.learning_rate), get(s.iteration), get(s.gradient_scale), get(s.weight_decay);
  }
  void get(SyncSpec& s) {
    get(s.step), get(s.rank), get(s.num_ranks), get(s.num_to_aggregate), get(s.divisor);
  }
  void get(UpdateShard& o) {
    get(o.shard);
    o.slots.resize(u8(kMostSlots));
    for (ShardId& slot : o.slots) get(slot);
    get_rule(o.rule), get(o.scalars), get(o.rows), get(o.gradient), get(o.sync);
    get(o.computed_at_version);
  }
  void get(RestoreShard& o) { get(o.shard), get(o.value); }
  void get(ReadStatistics&) {}
  void get(TellClock& o) {
    get_enum(o.event, TellClock::Event::kAsk), get(o.worker), get(o.clock), get(o.staleness);
  }
  void get(OperationAnswer& a) {
    get(a.value), get(a.version), get(a.num_steps), get(a.was_applied_before);
  }

 private:
  template <class... Parts>
  [[noreturn]] static void refuse(const Parts&... parts) {
    fail(ErrorCode::kDataLoss, "head of a batch: ", parts...);
  }
  void check() const {
    if (in_.failed()) refuse("it ends too early");
  }
  std::span<const std::int64_t> dims() {
    const auto rank = static_cast<std::size_t>(u8(Shape::kMaxRank));
    for (std::size_t i = 0; i < rank; ++i) get(dims_[i]);
    return {dims_, rank};
  }

  ByteReader in_;
  PayloadReader& payload_;
  SharedText rule_;
  std::int64_t dims_[Shape::kMaxRank] = {};
};

/// The operation that has this place in the variant.
template <std::size_t place = 0>
Operation operation_at(std::uint64_t wanted) {
  if (wanted == place) return std::variant_alternative_t<place, Operation>{};
  if constexpr (place + 1 < std::variant_size_v<Operation>) {
    return operation_at<place + 1>(wanted);
  } else {
    fail(ErrorCode::kDataLoss, "head of a batch: no operation has the number ", wanted);
  }
}

}  // namespace

std::vector<std::byte> write_bytes_head(const OperationBatch& batch, PayloadWriter& payload) {
  Writer out(payload);
  out.put(batch.term);
  out.u8(static_cast<std::uint64_t>(batch.stream.kind));
  out.put(batch.stream.id);
  out.put(batch.stream.replica);
  out.put(batch.first_ordinal);
  out.put(batch.finished_below);
  out.put(static_cast<std::uint32_t>(batch.operations.size()));
  for (const Operation& operation : batch.operations) {
    out.u8(operation.index());
    std::visit([&out](const auto& each) { out.put(each); }, operation);
  }
  return out.take();
}

OperationBatch read_bytes_batch(std::span<const std::byte> head, PayloadReader& payload) {
  Reader in(head, payload);
  OperationBatch batch;
  in.get(batch.term);
  in.get_enum(batch.stream.kind, UpdateStream::Kind::kClosure);
  in.get(batch.stream.id);
  in.get(batch.stream.replica);
  in.get(batch.first_ordinal);
  in.get(batch.finished_below);
  for (std::uint32_t left = in.count(kMostOperations); left > 0; --left) {
    Operation operation = operation_at(in.u8(std::variant_size_v<Operation> - 1));
    std::visit([&in](auto& each) { in.get(each); }, operation);
    batch.operations.push_back(std::move(operation));
  }
  in.finish();
  if (batch.stream.kind < UpdateStream::Kind::kClient) {
    fail(ErrorCode::kDataLoss, "head of a batch: its stream is neither a client's nor a closure's");
  }
  return batch;
}

std::vector<std::byte> write_bytes_head(const std::vector<OperationAnswer>& answers,
                                        PayloadWriter& payload) {
  Writer out(payload);
  out.put(static_cast<std::uint32_t>(answers.size()));
  for (const OperationAnswer& answer : answers) out.put(answer);
  return out.take();
}

std::vector<OperationAnswer> read_bytes_answers(std::span<const std::byte> head,
                                                PayloadReader& payload) {
  Reader in(head, payload);
  std::vector<OperationAnswer> answers;
  for (std::uint32_t left = in.count(kMostOperations); left > 0; --left) {
    in.get(answers.emplace_back());
  }
  in.finish();
  return answers;
}

}  // namespace tutti::internal
