// Tests the encoding of batches and replies as packets: every field, operations of one kind as
// columns, payloads in arbitrary chunks, and malformed packets.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <limits>

#include "tests/strategy/parameter_server/packet_helpers.h"
#include "tutti/cluster/rpc/packet.h"

namespace tutti {
namespace {
namespace ps_encoding {

using namespace store_tests;
using internal::decode_answers;
using internal::decode_batch;
using internal::encode;

void expect_refused(const Packet& packet, const std::string& part = "") {
  EXPECT_ERROR((void)decode_batch(packet), kDataLoss, part);
}

void expect_comes_back(const OperationBatch& batch) {
  for (const std::size_t size : {1, 7, 64, 4096, 1 << 20}) {
    const OperationBatch again = decode_batch(cut(encode(batch), size));
    EXPECT_EQ(Shown(again), Shown(batch));
  }
}

UpdateShard update_of(ShardId shard) {
  UpdateShard update{shard, {shard + 1000, shard + 2000}, R"({"rule":"adam"})"};
  update.scalars = {.learning_rate = 0.1, .iteration = 5, .gradient_scale = 1, .weight_decay = 0};
  update.gradient = Tensor::full({static_cast<std::int64_t>(shard % 5), 3}, 0.25);
  return update;
}

OperationBatch batch_with(std::vector<Operation> operations) {
  OperationBatch batch;
  batch.stream = {UpdateStream::Kind::kClient, 5, 0};
  batch.operations = std::move(operations);
  return batch;
}

TEST(OperationColumns, ConsecutiveOperationsOfEveryKindRoundTripInOrder) {
  std::vector<Operation> operations;
  for (ShardId i = 1; i <= 40; ++i) operations.emplace_back(update_of(i));
  for (ShardId i = 1; i <= 40; ++i) operations.emplace_back(ReadShard{i, i % 3, 4});
  // This read waits for a different step than the reads above, so it starts a new group.
  operations.emplace_back(ReadShard{9, 0, 5});
  for (int i = 0; i < 6; ++i) {
    const auto op = i < 3 ? AssignOp::kAdd : AssignOp::kSubtract;
    const DType dtype = i % 2 == 0 ? DType::kInt32 : DType::kFloat64;
    operations.emplace_back(AssignShard{3, op, Tensor::full({i}, i, dtype)});
  }
  operations.emplace_back(AssignShard{4, AssignOp::kSubtract, Tensor::full({}, 1.0)});
  operations.emplace_back(internal::ReadAwaited{});
  for (ShardId i = 1; i <= 5; ++i) {  // consecutive updates with sparse gradients
    UpdateShard update = update_of(i);
    update.rows = rows_of(std::vector<std::int64_t>(i % 5, 1));
    operations.emplace_back(update);
  }
  expect_comes_back(batch_with(operations));
  expect_comes_back(batch_with({}));
  expect_comes_back(batch_of_everything());
}

/// Encodes a batch with three updates per kind of change: two with the change and one without it.
TEST(OperationColumns, DifferentUpdatesDoNotShareSettings) {
  using Change = std::function<void(UpdateShard&)>;
  std::vector<Change> changes = {
      [](UpdateShard& u) { u.rule = "another"; },
      [](UpdateShard& u) { u.slots.pop_back(); },
      [](UpdateShard& u) { u.scalars.learning_rate = -0.0; },
      [](UpdateShard& u) { u.scalars.learning_rate = 0.0; },
      [](UpdateShard& u) { u.scalars.gradient_scale = std::numeric_limits<double>::quiet_NaN(); },
      [](UpdateShard& u) { u.scalars.iteration = 6; },
      [](UpdateShard& u) { u.scalars.weight_decay = 0.5; },
      [](UpdateShard& u) {
        u.rows.emplace(rows_of({1, 2}));
      },
  };
  for (const SyncSpec& sync : {SyncSpec{1, 2, 3, 3, 3.0},
                               {2, 2, 3, 3, 3.0},
                               {2, 1, 3, 3, 3.0},
                               {2, 1, 4, 3, 3.0},
                               {2, 1, 4, 4, 3.0},
                               {2, 1, 4, 4, -3.0}}) {
    changes.emplace_back([sync](UpdateShard& u) { u.sync = sync; });
  }
  std::vector<Operation> operations;
  for (const auto& change : changes) {
    for (const bool is_changed : {true, true, false}) {
      UpdateShard update = update_of(operations.size() + 1);
      if (is_changed) change(update);
      operations.emplace_back(update);
    }
  }
  expect_comes_back(batch_with(operations));
  UpdateShard zero = update_of(1), minus = update_of(2);
  zero.scalars.learning_rate = 0.0, minus.scalars.learning_rate = -0.0;
  expect_comes_back(batch_with({zero, minus, zero}));  // 0 and -0 are equal, but their bits differ
}

TEST(OperationColumns, ConsecutiveUpdatesUseFewBytesPerVariable) {
  std::vector<Operation> operations;
  for (ShardId i = 0; i < 256; ++i) {
    operations.emplace_back(update_of(i));
    auto& update = std::get<UpdateShard>(operations.back());
    update.slots.clear();
  }
  // Per operation: 2 bytes for the kind, 8 for the shard, 2 for type and rank, 2 for dimensions.
  // The settings take less than 100 bytes in all.
  const Packet packet = encode(batch_with(operations));
  EXPECT_LE(packet.head.size(), 256u * 14 + 100);
  // All decoded updates share one copy of the rule's text.
  const OperationBatch again = decode_batch(packet);
  EXPECT_EQ(&std::get<UpdateShard>(again.operations.front()).rule.text(),
            &std::get<UpdateShard>(again.operations.back()).rule.text());
}

TEST(OperationColumns, RepliesWithAndWithoutValuesRoundTrip) {
  std::vector<OperationAnswer> answers(50);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i % 3 != 0) answers[i].value = Tensor::full({static_cast<std::int64_t>(i % 4), 2}, 1.5);
    if (i == 7) answers[i].value = Tensor::full({}, 2.0, DType::kFloat16);
    answers[i].version = i << 30;
    answers[i].num_steps = i * 3;
    answers[i].was_applied_before = i % 2 == 0;
  }
  const auto again = decode_answers(cut(encode(answers), 50));
  EXPECT_EQ(Shown(again), Shown(answers));
  ASSERT_TRUE(again[1].value.has_value());
  expect_same_bits(*again[1].value, *answers[1].value);
  EXPECT_TRUE(decode_answers(encode(std::vector<OperationAnswer>{})).empty());
}

/// Returns true if the tensor is stored in `bytes`.
bool lies_in(const Tensor& tensor, const SharedBytes& bytes) {
  return tensor.bytes().data() >= bytes.bytes.data() &&
         tensor.bytes().data() < bytes.bytes.data() + bytes.bytes.size();
}

TEST(BatchEncoding, DecodedBatchTensorsAliasReceivedBytes) {
  const Tensor large = Tensor::full({40000}, 1.5), small = Tensor::full({10000}, 2.5);
  OperationBatch batch;
  batch.operations = {AssignShard{1, AssignOp::kAssign, large},
                      AssignShard{2, AssignOp::kAssign, small}};
  const Packet sent = encode(batch);
  const SharedBytes payload = payload_range(sent, 0, sent.payload_bytes());
  std::optional<Packet> received = Packet{sent.head, {payload}};
  const auto assigned = [](const OperationBatch& from, std::size_t i) {
    return std::get<AssignShard>(from.operations[i]).value;
  };
  const OperationBatch decoded = decode_batch(*received);
  EXPECT_TRUE(lies_in(assigned(decoded, 0), payload));
  EXPECT_TRUE(lies_in(assigned(decoded, 1), payload));
  // Assigning a tensor to a variable copies it, so that the variable does not keep a buffer five
  // times its size alive.
  VariableComponent component(Tensor::zeros({10000}), Device{});
  component.assign(AssignOp::kAssign, assigned(decoded, 1));
  EXPECT_FALSE(lies_in(component.read(), payload));
  expect_same_bits(component.read(), small);
  // Tensors are copied if the payload's owner is unknown, or if the payload is in chunks.
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(payload.bytes.begin(), payload.bytes.end());
  const SharedBytes foreign{*bytes, bytes};
  EXPECT_FALSE(lies_in(assigned(decode_batch({sent.head, {foreign}}), 0), foreign));
  const SharedBytes first{payload.bytes.first(6400), payload.owner};
  const SharedBytes rest{payload.bytes.subspan(6400), payload.owner};
  EXPECT_FALSE(lies_in(assigned(decode_batch({sent.head, {first, rest}}), 0), payload));
  received.reset();
  expect_same_bits(assigned(decoded, 0), large);
  expect_same_bits(assigned(decoded, 1), small);
}

TEST(BatchEncoding, LargeTensorsInRepliesAliasReceivedBytes) {
  const Tensor large = Tensor::full({40000}, 1.5), small = Tensor::full({10000}, 2.5);
  const Packet sent = encode(std::vector<OperationAnswer>{{large}, {small}});
  const SharedBytes payload = payload_range(sent, 0, sent.payload_bytes());
  const auto decoded = decode_answers({sent.head, {payload}});
  EXPECT_TRUE(lies_in(*decoded[0].value, payload));
  // Programs keep the values that they read, so a small value must not keep a buffer five times its
  // size alive.
  EXPECT_FALSE(lies_in(*decoded[1].value, payload));
  expect_same_bits(*decoded[1].value, small);
}

TEST(BatchEncoding, ShardSpecsRoundTripThroughTensor) {
  const std::vector<ShardSpec> specs = {{"w", DType::kFloat64, {10, 3}, 1, 4, 3, 3},
                                        whole("b", {}, DType::kBool)};
  EXPECT_EQ(internal::decode_specs(internal::encode_specs(specs)), specs);
  EXPECT_TRUE(internal::decode_specs(internal::encode_specs({})).empty());
  EXPECT_ERROR(internal::decode_specs(Tensor::from<std::uint8_t>({3}, {255, 255, 255})), kDataLoss,
               "ShardSpecs");
}

TEST(BatchEncoding, LargeTensorsAreNotCopiedAndChunksAreAligned) {
  const Tensor large = Tensor::full({5000}, 0.25);  // 20,000 bytes: not a multiple of 64
  OperationBatch batch = batch_of_everything();
  batch.operations.insert(batch.operations.begin() + 3, AssignShard{1, AssignOp::kAdd, large});
  const Packet packet = encode(batch);
  std::size_t offset = 0;
  bool found = false;
  for (const SharedBytes& piece : packet.payload) {
    EXPECT_EQ(offset % 64, 0u);
    found = found || piece.bytes.data() == large.bytes().data();
    offset += piece.bytes.size();
  }
  EXPECT_TRUE(found);
  EXPECT_LE(packet.payload.size(), 7u);  // small tensors share chunks
  EXPECT_EQ(Shown(decode_batch(packet)), Shown(batch));
}

TEST(BatchEncoding, TruncatedAndExtendedPacketsAreRejected) {
  const OperationBatch batch = batch_of_everything();
  const Packet packet = encode(batch);
  // A head truncated between two operations encodes a shorter batch. Its payload is then too long,
  // unless the missing operations have no tensors.
  for (std::size_t size = 0; size < packet.head.size(); ++size) {
    Packet shorter = packet;
    shorter.head.resize(size);
    try {
      EXPECT_GE(decode_batch(shorter).operations.size(), batch.operations.size() - 3) << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << size;
    }
  }
  Packet other = packet;
  other.payload.pop_back();
  expect_refused(other);
  other = packet;
  other.payload.push_back(other.payload.front());
  expect_refused(other);
  expect_error(ErrorCode::kDataLoss, {}, [&] { (void)decode_answers(packet); });
  Packet longer = packet;
  longer.head.push_back(std::byte{0});
  expect_refused(longer);
}

/// Returns hand-encoded columns of operations on shards.
std::string on_shards(const std::string& columns) { return operation(15, columns); }
/// Returns the encoded kinds and shards of `count` operations of kind `kind`.
std::string kinds(std::size_t count, char kind, char op = 0) {
  std::string column;
  for (std::size_t i = 0; i < count; ++i) column += {kind, op};
  return bytes(1, column) + bytes(2, std::string(8 * count, 'i'));
}
constexpr char kRead = 1, kReadRows = 2, kAssign = 3, kScatter = 4, kUpdate = 5, kUpdateRows = 6;
/// Returns the encoded types and ranks of `count` uint8 tensors: scalars, or vectors with the given
/// dimensions.
std::string heads(int field, std::size_t count, const std::string& dims = "") {
  std::string kinds;
  for (std::size_t i = 0; i < count; ++i) kinds += std::string{'\4', dims.empty() ? '\0' : '\1'};
  return bytes(field, bytes(1, kinds) + (dims.empty() ? "" : bytes(2, dims)));
}

/// Returns the encoded assignment of a tensor to a shard.
std::string assignment(char op, char dtype, const std::string& dims) {
  const auto rank = std::ranges::count_if(dims, [](char each) { return (each & 128) == 0; });
  const std::string kind{dtype, static_cast<char>(rank)};
  return on_shards(kinds(1, kAssign, op) + bytes(5, bytes(1, kind) + bytes(2, dims)));
}

TEST(BatchEncoding, InvalidFieldValuesAreRejected) {
  const auto three = varint(3);
  const auto uint8 = static_cast<char>(DType::kUInt8);
  const OperationBatch good = decode_batch(batch_packet(assignment(1, uint8, three), 64));
  EXPECT_EQ(std::get<AssignShard>(good.operations.at(0)).value.shape(), Shape({3}));
  expect_refused(packet_of(number(2, 0)));  // invalid kind of stream
  expect_refused(packet_of(number(2, 3)));
  expect_refused(packet_of(""));
  std::string many;
  for (std::size_t i = 0; i <= internal::kMostOperations; ++i) many += bytes(7, bytes(8, ""));
  expect_refused(batch_packet(many, 0));
  expect_refused(batch_packet(bytes(7, ""), 0));  // operation without a kind
  expect_refused(batch_packet(operation(12, ""), 0));
  expect_refused(batch_packet(assignment(3, uint8, three), 64));                 // invalid AssignOp
  expect_refused(batch_packet(assignment(1, 99, three), 64));                    // invalid type
  expect_refused(batch_packet(assignment(1, uint8, std::string(9, '\1')), 64));  // rank 9
  expect_refused(batch_packet(assignment(1, uint8, varint(65)), 64));  // exceeds the payload
  for (const std::uint64_t dim : {std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    expect_refused(batch_packet(assignment(1, uint8, varint(dim)), 64));
    expect_refused(batch_packet(assignment(1, uint8, varint(1 << 30) + varint(dim)), 64));
  }
  Packet bools = batch_packet(assignment(1, static_cast<char>(DType::kBool), three), 64);
  EXPECT_EQ(decode_batch(bools).operations.size(), 1u);
  std::vector<std::byte> values = payload_of(bools);
  values[1] = std::byte{2};
  bools.payload = {{values, nullptr}};
  EXPECT_ERROR((void)decode_batch(bools), kDataLoss, "bool");
}

TEST(BatchEncoding, EncodingOversizedBatchFails) {
  OperationBatch batch;
  batch.operations.assign(internal::kMostOperations + 1, ReadShard{});
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "65537");
  batch.operations = {CreateShard{whole(std::string(5000, 'x'), {1}), Tensor::ones({1})}};
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "5000 characters");
  batch.operations = {AssignShard{1, AssignOp::kAdd, Tensor()}};
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "undefined");
  batch.operations.clear();
  for (int i = 0; i < 100; ++i) {  // consecutive updates have different rules
    UpdateShard update{1, {}, std::string(60'000, i % 2 == 0 ? 'x' : 'y')};
    update.gradient = Tensor::ones({1});
    batch.operations.emplace_back(update);
  }
  EXPECT_ERROR((void)encode(batch), kResourceExhausted, "OperationBatch", "several requests");
}

TEST(OperationColumns, InconsistentColumnsAreRejected) {
  const std::string one = "\1", two = "\1\1", three = "\1\1\1";
  const auto settings = [](char num_updates, char num_slots) {
    return bytes(6, number(1, num_updates) + number(2, num_slots) + bytes(3, "r"));
  };
  const auto slots = [](std::size_t count) { return bytes(7, std::string(8 * count, 's')); };
  struct Case {
    std::string columns;
    std::size_t num_tensors = 0;
    std::string refused = {};  // part of the expected error; empty if accepted
  };
  const std::vector<Case> cases = {
      {kinds(2, kRead) + bytes(3, two) + bytes(4, two)},
      {kinds(2, kRead) + bytes(3, two) + bytes(4, one), 0, "only 1 numbers of steps"},
      {kinds(2, kRead) + bytes(3, three) + bytes(4, two), 0, "3 versions; expected 2"},
      {kinds(2, kRead) + bytes(4, two), 0, "only 0 versions"},
      {kinds(2, kRead, 1) + bytes(3, two) + bytes(4, two), 0, "expected operator 0"},
      {kinds(2, 7), 0, "7 is not a known value"},
      {bytes(1, one) + bytes(2, std::string(8, 'i')), 0, "only 1 kinds"},
      {kinds(2, kReadRows) + bytes(4, two) + heads(5, 2), 2},
      {kinds(2, kReadRows) + bytes(4, two) + heads(5, 1), 2, "only 2 types and ranks"},
      {kinds(2, kAssign, 1) + heads(5, 2), 2},
      {kinds(2, kAssign, 3) + heads(5, 2), 2, "3 is not a known value"},
      {kinds(2, kAssign) + heads(5, 3), 3, "6 types and ranks; expected 4"},
      {kinds(2, kAssign) + heads(5, 2, one), 2, "more dimensions, got "},
      {kinds(2, kAssign) + heads(5, 2, three), 2, "no more dimensions, got 1"},
      {kinds(2, kAssign), 2, "only 0 types"},
      {kinds(2, kAssign) + heads(5, 2), 1, "got only 0"},
      {kinds(2, kAssign) + heads(5, 2), 3, "64 bytes more"},
      {kinds(1, kScatter) + heads(5, 2), 2},
      {kinds(1, kScatter, 7) + heads(5, 2), 2, "7 is not a known value"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(2, 3) + slots(6), 2},
      {kinds(2, kUpdate) + heads(5, 2) + settings(1, 3) + settings(1, 2) + slots(5), 2},
      {kinds(2, kUpdateRows) + heads(5, 4) + settings(2, 0), 4},
      {kinds(2, kUpdateRows) + heads(5, 3) + settings(2, 0), 3, "only 6 types"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(1, 0), 2, "without settings"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(3, 0), 2, "more updates"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(2, 0) + settings(1, 0), 2, "more updates"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(2, 3) + slots(7), 2, "7 slots; expected 6"},
      {kinds(2, kUpdate) + heads(5, 2) + settings(2, 65) + slots(130), 2, "at most 64 slots"},
      {kinds(1, kUpdate) + heads(5, 1) +
           bytes(6, number(1, 1) + bytes(3, std::string(internal::kLongestRule + 1, 'r'))),
       1, "a text of at most"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Packet packet = batch_packet(on_shards(cases[i].columns), 64 * cases[i].num_tensors);
    if (cases[i].refused.empty()) {
      EXPECT_FALSE(decode_batch(packet).operations.empty());
    } else {
      expect_refused(packet, cases[i].refused);
    }
  }
}

TEST(OperationColumns, TooManyOperationsAreRejected) {
  const auto reads = [](std::size_t count) {
    const std::string zeros(count, '\0');
    return on_shards(kinds(count, kRead) + bytes(3, zeros) + bytes(4, zeros));
  };
  const std::size_t most = internal::kMostOperations;
  EXPECT_EQ(decode_batch(batch_packet(reads(most), 0)).operations.size(), most);
  expect_refused(batch_packet(reads(most + 1), 0), "got 65537");
  expect_refused(batch_packet(reads(most - 1) + reads(2), 0), "got 65537");
  expect_refused(batch_packet(reads(most) + bytes(7, bytes(8, "")), 0), "got 65537");
}

TEST(OperationColumns, InconsistentRepliesAreRejected) {
  const auto answers = [](const std::string& flags, std::size_t values, std::size_t versions,
                          std::size_t steps) {
    return packet_of(bytes(1, flags) + heads(2, values) + bytes(3, std::string(versions, '\1')) +
                         bytes(4, std::string(steps, '\2')),
                     64 * values);
  };
  const auto refused = [&](const Packet& packet, const std::string& part) {
    EXPECT_ERROR((void)decode_answers(packet), kDataLoss, part);
  };
  const auto good = decode_answers(answers("\1\2\3", 2, 3, 3));
  ASSERT_EQ(good.size(), 3u);
  EXPECT_TRUE(good[0].value && !good[1].value && good[2].value);
  EXPECT_TRUE(!good[0].was_applied_before && good[1].was_applied_before);
  EXPECT_EQ(good[2].num_steps, 2u);
  refused(answers("\1\4\3", 2, 3, 3), "unknown kind");
  refused(answers("\1\2\3", 1, 3, 3), "only 2 types");
  refused(answers("\1\2\3", 2, 2, 3), "only 2 versions");
  refused(answers("\1\2\3", 2, 3, 4), "4 numbers of steps; expected 3");
  const std::size_t many = internal::kMostOperations + 1;
  refused(answers(std::string(many, '\0'), 0, many, many), "answers, got 65537");
}

}  // namespace ps_encoding
}  // namespace
}  // namespace tutti
