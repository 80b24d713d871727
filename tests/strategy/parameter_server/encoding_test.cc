// Batches and answers as packets: every part, any cut of the payload, nothing believed.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/operation.h"

#include "tests/strategy/parameter_server/packet_helpers.h"
#include "tutti/cluster/rpc/packet.h"

namespace tutti {
namespace {
namespace ps_encoding {

using namespace store_tests;
using internal::decode_answers;
using internal::decode_batch;
using internal::encode;

void expect_equal(const OperationBatch& actual, const OperationBatch& expected) {
  EXPECT_EQ(Shown(actual), Shown(expected));
}

TEST(BatchEncoding, EveryOperationComesBackHoweverItWasCut) {
  const OperationBatch batch = batch_of_everything();
  const Packet packet = encode(batch);
  for (const std::size_t size : {1, 7, 64, 4096, 1 << 20}) {
    expect_equal(decode_batch(cut(packet, size)), batch);
  }
}

/// Whether both are in the same memory.
bool lies_in(const Tensor& tensor, const SharedBytes& bytes) {
  return tensor.bytes().data() >= bytes.bytes.data() &&
         tensor.bytes().data() < bytes.bytes.data() + bytes.bytes.size();
}

TEST(BatchEncoding, TensorsOfABatchStayWhereTheyWereReceived) {
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
  // A variable that takes it over does not keep five times its memory.
  VariableComponent component(Tensor::zeros({10000}), Device{});
  component.assign(AssignOp::kAssign, assigned(decoded, 1));
  EXPECT_FALSE(lies_in(component.read(), payload));
  expect_same_bits(component.read(), small);
  // In the memory of somebody else who may not know that it is shared, or in pieces.
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

TEST(BatchEncoding, OfAnswersLargeTensorsAloneStayWhereTheyWereReceived) {
  const Tensor large = Tensor::full({40000}, 1.5), small = Tensor::full({10000}, 2.5);
  const Packet sent = encode(std::vector<OperationAnswer>{{large}, {small}});
  const SharedBytes payload = payload_range(sent, 0, sent.payload_bytes());
  const auto decoded = decode_answers({sent.head, {payload}});
  EXPECT_TRUE(lies_in(*decoded[0].value, payload));
  // Programs keep what they read: it would keep five times its memory.
  EXPECT_FALSE(lies_in(*decoded[1].value, payload));
  expect_same_bits(*decoded[1].value, small);
}

TEST(BatchEncoding, PartsAreWhatTheyWere) {
  const OperationBatch batch = decode_batch(encode(batch_of_everything()));
  EXPECT_EQ(batch.stream, (UpdateStream{UpdateStream::Kind::kClosure, 0xF123456789ABCDEF, 7}));
  EXPECT_EQ(batch.run, 3u);
  EXPECT_EQ(batch.first_ordinal, 11u);
  EXPECT_EQ(batch.finished_below, 9u);
  const auto& create = std::get<CreateShard>(batch.operations[0]);
  EXPECT_EQ(create.spec, (ShardSpec{"layer/'w'\n", DType::kFloat64, {10, 3}, 1, 4, 3, 3}));
  const ValueGenerator generator{
      ValueGenerator::Kind::kUniform, -0.1, 0.2, {1, 2, 3, 4, 5}, DType::kFloat64, {10, 3}};
  EXPECT_EQ(std::get<ValueGenerator>(create.initial_value), generator);
  EXPECT_EQ(std::get<AssignShard>(batch.operations[4]).op, AssignOp::kSubtract);
  EXPECT_EQ(std::get<ScatterShard>(batch.operations[5]).op, ScatterOp::kMax);
  const auto& update = std::get<UpdateShard>(batch.operations[8]);
  EXPECT_EQ(update.slots, (std::vector<ShardId>{8, 9}));
  EXPECT_EQ(update.scalars.iteration, 12);
  EXPECT_EQ(update.sync->num_to_aggregate, 4);
  EXPECT_EQ(update.sync->divisor, 2.5);
  EXPECT_EQ(update.computed_at_version, 99u);
  expect_same_bits(*update.rows, rows_of({2, 2, 1}));
  EXPECT_FALSE(std::get<UpdateShard>(batch.operations[9]).sync.has_value());
  EXPECT_TRUE(std::holds_alternative<internal::ReadStatistics>(batch.operations[10]));
  const auto& report = std::get<internal::ReportWorker>(batch.operations[11]);
  EXPECT_EQ(report.worker, 3);
  EXPECT_TRUE(report.has_ended);
  EXPECT_EQ(
      std::get<internal::StoreOrder>(batch.operations[12]),
      (internal::StoreOrder{internal::StoreOrder::Kind::kReadFrozen, 0xF00000000000000D, 5, 6}));
}

TEST(BatchEncoding, SpecsOfShardsAreTheBytesOfATensor) {
  const std::vector<ShardSpec> specs = {{"w", DType::kFloat64, {10, 3}, 1, 4, 3, 3},
                                        whole("b", {}, DType::kBool)};
  EXPECT_EQ(internal::decode_specs(internal::encode_specs(specs)), specs);
  EXPECT_TRUE(internal::decode_specs(internal::encode_specs({})).empty());
  EXPECT_ERROR(internal::decode_specs(Tensor::from<std::uint8_t>({3}, {255, 255, 255})), kDataLoss,
               "ShardSpecs");
}

TEST(BatchEncoding, LargeTensorsAreNotCopiedAndPiecesStartAtMultiplesOf64) {
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
  EXPECT_LE(packet.payload.size(), 7u);  // small tensors travel together
  expect_equal(decode_batch(packet), batch);
}

TEST(BatchEncoding, AnswersComeBack) {
  std::vector<OperationAnswer> answers(3);
  answers[0].value = Tensor::full({40, 40}, 3.0);
  answers[0].version = 5;
  answers[1].num_steps = 6;
  answers[1].was_applied_before = true;
  answers[2].value = Tensor::full({}, 2.0, DType::kFloat16);
  const auto again = decode_answers(cut(encode(answers), 100));
  ASSERT_EQ(again.size(), 3u);
  expect_same_bits(*again[0].value, *answers[0].value);
  EXPECT_EQ(again[0].version, 5u);
  EXPECT_FALSE(again[1].value.has_value());
  EXPECT_EQ(again[1].num_steps, 6u);
  EXPECT_TRUE(again[1].was_applied_before);
  expect_same_bits(*again[2].value, *answers[2].value);
  EXPECT_TRUE(decode_answers(encode(std::vector<OperationAnswer>{})).empty());
}

void expect_refused(const Packet& packet) {
  expect_error(ErrorCode::kDataLoss, {}, [&] { (void)decode_batch(packet); });
}

TEST(BatchEncoding, WhatIsCutOffOrAddedIsRefused) {
  const OperationBatch batch = batch_of_everything();
  const Packet packet = encode(batch);
  // Between two operations it is a shorter batch, whose payload has too much; but behind the last
  // operations, which have no tensors.
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

/// Adds a tensor to shard 0.
std::string assignment(std::uint64_t op, char dtype, const std::string& dims) {
  const auto rank = std::ranges::count_if(dims, [](char each) { return (each & 128) == 0; });
  const std::string kind{dtype, static_cast<char>(rank)};
  return operation(11, bytes(1, std::string(8, '\0')) + number(2, op) +
                           bytes(3, bytes(1, kind) + bytes(2, dims)));
}

TEST(BatchEncoding, NumbersThatNameNothingAreRefused) {
  const auto three = varint(3);
  const auto uint8 = static_cast<char>(DType::kUInt8);
  const OperationBatch good = decode_batch(batch_packet(assignment(1, uint8, three), 64));
  EXPECT_EQ(std::get<AssignShard>(good.operations.at(0)).value.shape(), Shape({3}));
  expect_refused(packet_of(number(2, 0)));  // a stream of no kind
  expect_refused(packet_of(number(2, 3)));
  expect_refused(packet_of(""));
  std::string many;
  for (std::size_t i = 0; i <= internal::kMostOperations; ++i) many += bytes(7, bytes(8, ""));
  expect_refused(batch_packet(many, 0));
  expect_refused(batch_packet(bytes(7, ""), 0));  // an operation of no kind
  expect_refused(batch_packet(operation(15, ""), 0));
  expect_refused(batch_packet(assignment(3, uint8, three), 64));  // no such assignment
  expect_refused(batch_packet(assignment(1, 99, three), 64));     // no such type
  expect_refused(batch_packet(assignment(1, uint8, std::string(9, '\1')), 64));  // rank 9
  expect_refused(batch_packet(assignment(1, uint8, varint(65)), 64));  // more than there is
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

TEST(BatchEncoding, WhatIsTooLongIsSaidBeforeItIsSent) {
  OperationBatch batch;
  batch.operations.assign(internal::kMostOperations + 1, ReadShard{});
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "65537");
  batch.operations = {CreateShard{whole(std::string(5000, 'x'), {1}), Tensor::ones({1})}};
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "5000 characters");
  batch.operations = {AssignShard{1, AssignOp::kAdd, Tensor()}};
  EXPECT_ERROR((void)encode(batch), kInvalidArgument, "undefined");
  batch.operations.clear();
  for (int i = 0; i < 100; ++i) {  // no two in a row have one rule
    UpdateShard update{1, {}, std::string(60'000, i % 2 == 0 ? 'x' : 'y')};
    update.gradient = Tensor::ones({1});
    batch.operations.emplace_back(update);
  }
  EXPECT_ERROR((void)encode(batch), kResourceExhausted, "OperationBatch", "several requests");
}

}  // namespace ps_encoding
}  // namespace
}  // namespace tutti
