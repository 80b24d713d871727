// Implements operations on shards: their names, and the encoding of batches and replies as messages
// of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/operation.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include "core/hash.h"
#include "parameter_server.pb.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::internal {

ShardId shard_id(const std::string& variable, int shard) {
  Hasher hasher;
  hasher.update(variable);
  hasher.update("#" + std::to_string(shard));
  const std::string digits = hasher.hex_digest();
  ShardId id = 0;
  std::from_chars(digits.data(), digits.data() + 16, id, 16);
  return id;
}

Shape ShardSpec::shape() const {
  return whole_shape.rank() == 0 ? whole_shape : whole_shape.with_dim(0, num_rows);
}

bool ShardSpec::has_rows() const {
  const std::int64_t whole = whole_shape.rank() == 0 ? 1 : whole_shape[0];
  return first_row >= 0 && num_rows >= 0 && first_row <= whole && num_rows <= whole - first_row;
}

std::string ShardSpec::to_string() const {
  if (num_shards == 1) return concat("'", variable, "'");
  return concat("'", variable, "' (shard ", shard, " of ", num_shards, ")");
}

const std::string& SharedText::text() const {
  static const std::string nothing;
  return text_ ? *text_ : nothing;
}

std::uint64_t num_changes(const OperationBatch& batch) {
  return static_cast<std::uint64_t>(std::ranges::count_if(batch.operations, changes_values));
}

namespace {

template <class... Parts>
[[noreturn]] void refuse_batch(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "head of a batch: ", parts...);
}

template <class... Parts>
[[noreturn]] void refuse_to_send(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, "a batch of operations: ", parts...);
}

std::string checked_text(const std::string& text, std::size_t longest) {
  if (text.size() > longest)
    refuse_batch("expected a text of at most ", longest, " bytes, got ", text.size());
  return text;
}

// Columns.

/// Reads a column entry by entry.
template <class Column>
class ColumnReader {
 public:
  ColumnReader(const Column& column, const char* what) : column_(column), what_(what) {}
  auto next() {
    if (place_ >= std::ssize(column_))
      refuse_batch("a column has only ", place_, " ", what_, "; expected more");
    return *(column_.begin() + place_++);
  }
  template <class Enum>
  Enum next_enum(Enum first, Enum last) {
    return checked_enum(static_cast<unsigned char>(next()), first, last);
  }
  /// Throws kDataLoss unless the whole column was read.
  void finish() const {
    if (place_ == std::ssize(column_)) return;
    refuse_batch("a column of ", column_.size(), " ", what_, "; expected ", place_);
  }

 private:
  const Column& column_;
  const char* const what_;
  std::ptrdiff_t place_ = 0;
};

/// Writes tensors: dtypes and shapes as columns of `out`, elements into the payload.
class TensorWriter {
 public:
  TensorWriter(std::size_t expected, PayloadWriter& payload, v1::TensorHeads& out)
      : payload_(payload), dims_(*out.mutable_dims()), kinds_(*out.mutable_kinds()) {
    dims_.Reserve(static_cast<int>(expected));
    kinds_.reserve(2 * expected);
  }

  void put(const Tensor& tensor) {
    if (!tensor.defined()) refuse_to_send("expected tensors with values, got an undefined tensor");
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

class TensorReader {
 public:
  TensorReader(const v1::TensorHeads& in, PayloadReader& payload)
      : kinds_(in.kinds(), "types and ranks"),
        dims_(in.dims().data(), static_cast<std::size_t>(in.dims_size())),
        payload_(payload) {}
  Tensor take() {
    const std::size_t dtype = static_cast<unsigned char>(kinds_.next());
    const std::size_t rank = static_cast<unsigned char>(kinds_.next());
    if (rank > dims_.size())
      refuse_batch("expected ", rank, " more dimensions, got ", dims_.size());
    const auto dims = dims_.first(rank);
    dims_ = dims_.subspan(rank);
    return payload_.take(dtype, dims);
  }
  void finish() const {
    kinds_.finish();
    if (!dims_.empty()) refuse_batch("expected no more dimensions, got ", dims_.size());
  }

 private:
  ColumnReader<std::string> kinds_;
  std::span<const std::int64_t> dims_;
  PayloadReader& payload_;
};

// Settings shared by consecutive updates.

/// Compares bits, so that 0.0 and -0.0 count as different settings, and bit-identical NaNs count as
/// equal.
bool are_same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
bool are_same(const UpdateScalars& a, const UpdateScalars& b) {
  return are_same(a.learning_rate, b.learning_rate) && a.iteration == b.iteration &&
         are_same(a.gradient_scale, b.gradient_scale) && are_same(a.weight_decay, b.weight_decay);
}
bool share_settings(const UpdateShard& a, const UpdateShard& b) {
  return a.slots.size() == b.slots.size() && a.rule == b.rule && are_same(a.scalars, b.scalars) &&
         a.sync == b.sync;
}

void put_settings(const UpdateShard& update, v1::UpdateSettings& out) {
  if (update.rule.size() > kLongestRule || update.slots.size() > kMostSlots) {
    refuse_to_send("the description of a rule has ", update.rule.size(), " characters and ",
                   update.slots.size(), " slots; expected at most ", kLongestRule, " and ",
                   kMostSlots);
  }
  out.set_num_slots(static_cast<std::uint32_t>(update.slots.size()));
  out.set_rule(update.rule.text());
  out.set_learning_rate(update.scalars.learning_rate);
  out.set_iteration(update.scalars.iteration);
  out.set_gradient_scale(update.scalars.gradient_scale);
  out.set_weight_decay(update.scalars.weight_decay);
  if (!update.sync) return;
  v1::SyncSpec& sync = *out.mutable_sync();
  sync.set_step(update.sync->step), sync.set_rank(update.sync->rank);
  sync.set_num_ranks(update.sync->num_ranks), sync.set_divisor(update.sync->divisor);
  sync.set_num_to_aggregate(update.sync->num_to_aggregate);
}

UpdateShard get_settings(const v1::UpdateSettings& in) {
  if (in.num_slots() > kMostSlots) {
    refuse_batch("expected at most ", kMostSlots, " slots, got ", in.num_slots());
  }
  UpdateShard update;
  update.slots.resize(in.num_slots());
  update.rule = checked_text(in.rule(), kLongestRule);
  update.scalars.learning_rate = in.learning_rate();
  update.scalars.iteration = in.iteration();
  update.scalars.gradient_scale = in.gradient_scale();
  update.scalars.weight_decay = in.weight_decay();
  if (in.has_sync()) {
    const v1::SyncSpec& sync = in.sync();
    update.sync = {sync.step(), sync.rank(), sync.num_ranks(), sync.num_to_aggregate(),
                   sync.divisor()};
  }
  return update;
}

// Operations on shards.

enum class Kind : std::uint8_t { kRead = 1, kReadRows, kAssign, kScatter, kUpdate, kUpdateRows };

class ShardsWriter {
 public:
  /// `expected`: approximate number of operations.
  ShardsWriter(std::size_t expected, PayloadWriter& payload, v1::ShardOperations& out)
      : out_(out), tensors_(expected, payload, *out.mutable_tensors()) {
    out_.mutable_kinds()->reserve(2 * expected);
    out_.mutable_shards()->Reserve(static_cast<int>(expected));
    out_.mutable_versions()->Reserve(static_cast<int>(expected));
  }

  void put(const ReadShard& o) {
    begin(Kind::kRead, 0, o.shard);
    out_.add_versions(o.have_version), out_.add_at_least_steps(o.at_least_steps);
  }
  void put(const ReadRows& o) {
    begin(Kind::kReadRows, 0, o.shard);
    out_.add_at_least_steps(o.at_least_steps);
    tensors_.put(o.rows);
  }
  void put(const AssignShard& o) {
    begin(Kind::kAssign, static_cast<int>(o.op), o.shard);
    tensors_.put(o.value);
  }
  void put(const ScatterShard& o) {
    begin(Kind::kScatter, static_cast<int>(o.op), o.shard);
    tensors_.put(o.rows), tensors_.put(o.values);
  }
  void put(const UpdateShard& o) {
    begin(o.rows ? Kind::kUpdateRows : Kind::kUpdate, 0, o.shard);
    if (last_ == nullptr || !share_settings(*last_, o)) put_settings(o, *out_.add_settings());
    last_ = &o;
    v1::UpdateSettings& settings = *out_.mutable_settings(out_.settings_size() - 1);
    settings.set_num_updates(settings.num_updates() + 1);
    for (const ShardId slot : o.slots) out_.add_slots(slot);
    if (o.rows) tensors_.put(*o.rows);
    tensors_.put(o.gradient);
  }

 private:
  void begin(Kind kind, int op, ShardId shard) {
    out_.mutable_kinds()->push_back(static_cast<char>(kind));
    out_.mutable_kinds()->push_back(static_cast<char>(op));
    out_.add_shards(shard);
  }

  v1::ShardOperations& out_;
  TensorWriter tensors_;
  const UpdateShard* last_ = nullptr;
};

class ShardsReader {
 public:
  ShardsReader(const v1::ShardOperations& in, PayloadReader& payload)
      : in_(in), tensors_(in.tensors(), payload) {}

  /// Appends all operations to `out`.
  void read(std::vector<Operation>& out) {
    for (const ShardId shard : in_.shards()) out.push_back(next(shard));
    kinds_.finish(), versions_.finish(), steps_.finish(), slots_.finish(), tensors_.finish();
    if (num_updates_ > 0 || next_settings_ < in_.settings_size()) {
      refuse_batch("the settings belong to more updates than the batch contains");
    }
  }

 private:
  Operation next(ShardId shard) {
    const Kind kind = kinds_.next_enum(Kind::kRead, Kind::kUpdateRows);
    switch (kind) {
      case Kind::kAssign: {
        const AssignOp op = kinds_.next_enum(AssignOp::kAssign, AssignOp::kSubtract);
        return AssignShard{shard, op, tensors_.take()};
      }
      case Kind::kScatter: {
        const ScatterOp op = kinds_.next_enum(ScatterOp::kAdd, ScatterOp::kUpdate);
        Tensor rows = tensors_.take();
        return ScatterShard{shard, op, std::move(rows), tensors_.take()};
      }
      default:
        break;
    }
    if (kinds_.next() != 0)
      refuse_batch("expected operator 0 for an operation without an operator");
    if (kind == Kind::kRead) return ReadShard{shard, versions_.next(), steps_.next()};
    if (kind == Kind::kReadRows) return ReadRows{shard, tensors_.take(), steps_.next()};
    return next_update(shard, kind == Kind::kUpdateRows);
  }

  Operation next_update(ShardId shard, bool has_rows) {
    while (num_updates_ == 0) {
      if (next_settings_ >= in_.settings_size())
        refuse_batch("expected settings for every update, got an update without settings");
      const v1::UpdateSettings& settings = in_.settings(next_settings_++);
      shared_ = get_settings(settings);
      num_updates_ = settings.num_updates();
    }
    --num_updates_;
    UpdateShard update = shared_;
    update.shard = shard;
    for (ShardId& slot : update.slots) slot = slots_.next();
    if (has_rows) update.rows = tensors_.take();
    update.gradient = tensors_.take();
    return update;
  }

  const v1::ShardOperations& in_;
  TensorReader tensors_;
  ColumnReader<std::string> kinds_{in_.kinds(), "kinds"};
  using Numbers = google::protobuf::RepeatedField<std::uint64_t>;
  ColumnReader<Numbers> versions_{in_.versions(), "versions"};
  ColumnReader<Numbers> steps_{in_.at_least_steps(), "numbers of steps"};
  ColumnReader<Numbers> slots_{in_.slots(), "slots"};
  UpdateShard shared_;  // settings for the next `num_updates_` updates
  std::uint64_t num_updates_ = 0;
  int next_settings_ = 0;
};

// Other operations.

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

void put(const CreateShard& o, PayloadWriter& payload, v1::Operation& out) {
  if (o.spec.variable.size() > kLongestVariableName) {
    refuse_to_send("a variable's name has ", o.spec.variable.size(), " characters; expected ",
                   kLongestVariableName, " at most");
  }
  v1::CreateShard& create = *out.mutable_create();
  put_spec(o.spec, *create.mutable_spec());
  if (const auto* generator = std::get_if<ValueGenerator>(&o.initial_value)) {
    put_generator(*generator, *create.mutable_generator());
  } else {
    put_tensor(std::get<Tensor>(o.initial_value), payload, *create.mutable_value());
  }
}
void put(const ReadAwaited&, PayloadWriter&, v1::Operation& out) { out.mutable_read_awaited(); }
void put(const ReportWorker& o, PayloadWriter&, v1::Operation& out) {
  v1::ReportWorker& report = *out.mutable_report_worker();
  report.set_worker(o.worker), report.set_has_ended(o.has_ended);
}
void put(const StoreOrder& o, PayloadWriter&, v1::Operation& out) {
  v1::StoreOrder& order = *out.mutable_order();
  order.set_kind(static_cast<std::uint32_t>(o.kind));
  order.set_run(o.run), order.set_generation(o.generation), order.set_number(o.number);
}

CreateShard get_create(const v1::CreateShard& in, PayloadReader& payload) {
  if (in.has_generator()) return {get_spec(in.spec()), get_generator(in.generator())};
  return {get_spec(in.spec()), get_tensor(in.value(), payload)};
}

/// Appends the operations of one message to `out`.
void get(const v1::Operation& in, PayloadReader& payload, std::vector<Operation>& out) {
  using Order = StoreOrder::Kind;
  switch (in.kind_case()) {
    case v1::Operation::kShards:
      return ShardsReader(in.shards(), payload).read(out);
    case v1::Operation::kCreate:
      return out.push_back(get_create(in.create(), payload));
    case v1::Operation::kReadAwaited:
      return out.push_back(ReadAwaited{});
    case v1::Operation::kReportWorker:
      return out.push_back(
          ReportWorker{in.report_worker().worker(), in.report_worker().has_ended()});
    case v1::Operation::kOrder:
      return out.push_back(
          StoreOrder{checked_enum(in.order().kind(), Order::kOpen, Order::kRelease),
                     in.order().run(), in.order().generation(), in.order().number()});
    case v1::Operation::KIND_NOT_SET:
      break;
  }
  refuse_batch("expected a known kind of operation, got an unknown kind");
}

template <class Op>
constexpr bool goes_in_columns = requires(ShardsWriter& to, const Op& o) {
  to.put(o);
};

void put_batch(const OperationBatch& batch, PayloadWriter& payload, v1::OperationBatch& out) {
  if (batch.operations.size() > kMostOperations) {
    refuse_to_send("expected at most ", kMostOperations, " operations, got ",
                   batch.operations.size());
  }
  out.set_run(batch.run);
  out.set_stream_kind(static_cast<std::uint32_t>(batch.stream.kind));
  out.set_stream_id(batch.stream.id);
  out.set_stream_replica(batch.stream.replica);
  out.set_first_ordinal(batch.first_ordinal);
  out.set_finished_below(batch.finished_below);
  std::optional<ShardsWriter> shards;  // set during a run of consecutive operations on shards
  for (const Operation& operation : batch.operations) {
    const auto put_one = [&]<class Op>(const Op& o) {
      if constexpr (goes_in_columns<Op>) {
        if (!shards) {
          shards.emplace(batch.operations.size(), payload, *out.add_operations()->mutable_shards());
        }
        shards->put(o);
      } else {
        shards.reset();
        put(o, payload, *out.add_operations());
      }
    };
    std::visit(put_one, operation);
  }
}

/// Returns the number of operations. Throws kDataLoss if there are too many, before allocating
/// memory.
std::size_t num_operations(const v1::OperationBatch& in) {
  std::size_t count = 0;
  for (const v1::Operation& each : in.operations()) {
    count += each.has_shards() ? static_cast<std::size_t>(each.shards().shards_size()) : 1;
  }
  if (count <= kMostOperations) return count;
  refuse_batch("expected at most ", kMostOperations, " operations, got ", count);
}

OperationBatch get_batch(const v1::OperationBatch& in, PayloadReader& payload) {
  using StreamKind = UpdateStream::Kind;
  OperationBatch batch;
  batch.run = in.run();
  batch.stream = {checked_enum(in.stream_kind(), StreamKind::kClient, StreamKind::kClosure),
                  in.stream_id(), in.stream_replica()};
  batch.first_ordinal = in.first_ordinal();
  batch.finished_below = in.finished_below();
  batch.operations.reserve(num_operations(in));
  for (const v1::Operation& each : in.operations()) get(each, payload, batch.operations);
  return batch;
}

// Replies.

constexpr unsigned char kHasValue = 1, kWasAppliedBefore = 2;

void put_answers(std::span<const OperationAnswer> answers, PayloadWriter& payload,
                 v1::OperationAnswers& out) {
  const auto num_values = static_cast<std::size_t>(
      std::ranges::count_if(answers, [](const auto& answer) { return answer.value.has_value(); }));
  std::optional<TensorWriter> values;  // nullopt if no reply has a value, as is usual for changes
  if (num_values > 0) values.emplace(num_values, payload, *out.mutable_values());
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
  if (in.flags().size() > kMostOperations) {
    refuse_batch("expected at most ", kMostOperations, " answers, got ", in.flags().size());
  }
  ColumnReader versions(in.versions(), "versions"), num_steps(in.num_steps(), "numbers of steps");
  TensorReader values(in.values(), payload);
  std::vector<OperationAnswer> answers;
  answers.reserve(in.flags().size());
  for (const char flags : in.flags()) {
    if ((flags & ~(kHasValue | kWasAppliedBefore)) != 0)
      refuse_batch("expected a known kind of answer, got an unknown kind");
    OperationAnswer& answer = answers.emplace_back();
    if ((flags & kHasValue) != 0) answer.value = values.take();
    answer.version = versions.next(), answer.num_steps = num_steps.next();
    answer.was_applied_before = (flags & kWasAppliedBefore) != 0;
  }
  versions.finish(), num_steps.finish(), values.finish();
  return answers;
}

}  // namespace

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
