// Operations in a row as columns: what shares a message, what comes back, what is refused.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "tests/strategy/parameter_server/packet_helpers.h"

namespace tutti {
namespace {
namespace ps_columns {

using namespace store_tests;
using internal::decode_answers;
using internal::decode_batch;
using internal::encode;

void expect_comes_back(const OperationBatch& batch) {
  for (const std::size_t size : {7, 4096, 1 << 20}) {
    const OperationBatch again = decode_batch(cut(encode(batch), size));
    EXPECT_EQ(Shown(again), Shown(batch));
  }
}

UpdateShard update_of(ShardId shard) {
  UpdateShard update{shard, {shard + 1000, shard + 2000}, R"({"rule":"adam"})"};
  update.scalars = {.learning_rate = 0.1, .iteration = 5, .gradient_scale = 1, .weight_decay = 0};
  update.gradient = Tensor::full({static_cast<std::int64_t>(shard % 5), 3}, 0.25);
  update.computed_at_version = 7 * shard;
  return update;
}

OperationBatch batch_with(std::vector<Operation> operations) {
  OperationBatch batch;
  batch.stream = {UpdateStream::Kind::kClient, 5, 0};
  batch.operations = std::move(operations);
  return batch;
}

TEST(OperationColumns, RunsOfAllKindsComeBackInOrder) {
  std::vector<Operation> operations;
  for (ShardId i = 1; i <= 40; ++i) operations.emplace_back(update_of(i));
  for (ShardId i = 1; i <= 40; ++i) operations.emplace_back(ReadShard{i, i % 3, 4});
  operations.emplace_back(ReadShard{9, 0, 5});  // alone: it waits for another step
  for (int i = 0; i < 6; ++i) {
    const auto op = i < 3 ? AssignOp::kAdd : AssignOp::kSubtract;
    const DType dtype = i % 2 == 0 ? DType::kInt32 : DType::kFloat64;
    operations.emplace_back(AssignShard{3, op, Tensor::full({i}, i, dtype)});
  }
  operations.emplace_back(AssignShard{4, AssignOp::kSubtract, Tensor::full({}, 1.0)});
  operations.emplace_back(internal::ReadStatistics{});
  for (ShardId i = 1; i <= 5; ++i) {  // gradients of rows, in a run, too
    UpdateShard update = update_of(i);
    update.rows = rows_of(std::vector<std::int64_t>(i % 5, 1));
    operations.emplace_back(update);
  }
  expect_comes_back(batch_with(operations));
  expect_comes_back(batch_with({}));
  expect_comes_back(batch_of_everything());
}

/// Each second update differs from its neighbours in one thing that a run shares.
TEST(OperationColumns, WhatDiffersSharesNothing) {
  const std::vector<std::function<void(UpdateShard&)>> changes = {
      [](UpdateShard& u) { u.rule = "another"; },
      [](UpdateShard& u) { u.slots.pop_back(); },
      [](UpdateShard& u) { u.scalars.learning_rate = -0.0; },
      [](UpdateShard& u) { u.scalars.learning_rate = 0.0; },
      [](UpdateShard& u) { u.scalars.gradient_scale = std::numeric_limits<double>::quiet_NaN(); },
      [](UpdateShard& u) { u.scalars.iteration = 6; },
      [](UpdateShard& u) { u.scalars.weight_decay = 0.5; },
      [](UpdateShard& u) {
        u.rows = rows_of({1, 2});
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{1, 2, 3, 3, 3.0};
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{2, 2, 3, 3, 3.0};
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{2, 1, 3, 3, 3.0};
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{2, 1, 4, 3, 3.0};
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{2, 1, 4, 4, 3.0};
      },
      [](UpdateShard& u) {
        u.sync = SyncSpec{2, 1, 4, 4, -3.0};
      },
  };
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
  expect_comes_back(batch_with({zero, minus, zero}));  // equal numbers, other bits
}

TEST(OperationColumns, ARunCostsAFewBytesForEachVariable) {
  std::vector<Operation> operations;
  for (ShardId i = 0; i < 256; ++i) {
    operations.emplace_back(update_of(i));
    auto& update = std::get<UpdateShard>(operations.back());
    update.slots.clear(), update.computed_at_version = 0;
  }
  // A shard 8, a version 1, type and rank 2, two dimensions 2; what all share is below 100.
  const Packet packet = encode(batch_with(operations));
  EXPECT_LE(packet.head.size(), 256u * 13 + 100);
  // They also share the text of the rule where they arrive.
  const OperationBatch again = decode_batch(packet);
  EXPECT_EQ(&std::get<UpdateShard>(again.operations.front()).rule.text(),
            &std::get<UpdateShard>(again.operations.back()).rule.text());
}

TEST(OperationColumns, AnswersWithAndWithoutValuesComeBack) {
  std::vector<OperationAnswer> answers(50);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i % 3 != 0) answers[i].value = Tensor::full({static_cast<std::int64_t>(i % 4), 2}, 1.5);
    answers[i].version = i << 30;
    answers[i].num_steps = i * 3;
    answers[i].was_applied_before = i % 2 == 0;
  }
  const auto again = decode_answers(cut(encode(answers), 50));
  EXPECT_EQ(Shown(again), Shown(answers));
  ASSERT_TRUE(again[1].value.has_value());
  expect_same_bits(*again[1].value, *answers[1].value);
}

std::string shards(std::size_t count) { return bytes(1, std::string(8 * count, 'i')); }
/// Types and ranks of so many tensors of uint8: scalars, or with these dimensions of rank 1.
std::string heads(int field, std::size_t count, const std::string& dims = "") {
  std::string kinds;
  for (std::size_t i = 0; i < count; ++i) kinds += std::string{'\4', dims.empty() ? '\0' : '\1'};
  return bytes(field, bytes(1, kinds) + (dims.empty() ? "" : bytes(2, dims)));
}
void expect_refused(const Packet& packet, const std::string& part) {
  EXPECT_ERROR((void)decode_batch(packet), kDataLoss, part);
}

TEST(OperationColumns, ColumnsThatDoNotFitAreRefused) {
  const auto reads = [](const std::string& message) { return operation(10, message); };
  const auto assigns = [](const std::string& message) { return operation(11, message); };
  const auto updates = [](const std::string& message) { return operation(12, message); };
  const std::string two = std::string(2, '\0'), three = std::string(3, '\0');

  const std::string good_reads = reads(shards(2) + bytes(2, two));
  EXPECT_EQ(decode_batch(batch_packet(good_reads + good_reads, 0)).operations.size(), 4u);
  expect_refused(batch_packet(reads(shards(2) + bytes(2, three)), 0), "expected 2 versions");
  expect_refused(batch_packet(reads(shards(2)), 0), "got 0");

  const std::string good_assigns = assigns(shards(2) + number(2, 1) + heads(3, 2));
  const OperationBatch assigned = decode_batch(batch_packet(good_assigns));
  EXPECT_EQ(std::get<AssignShard>(assigned.operations.at(1)).op, AssignOp::kAdd);
  expect_refused(batch_packet(assigns(shards(2) + number(2, 3) + heads(3, 2))), "3 names");
  expect_refused(batch_packet(assigns(shards(2) + heads(3, 1))), "expected 4 types");
  expect_refused(batch_packet(assigns(shards(2) + heads(3, 3))), "expected 4 types");
  expect_refused(batch_packet(assigns(shards(2) + heads(3, 2, "\1"))), "2 dimensions");
  expect_refused(batch_packet(assigns(shards(2) + heads(3, 2, "\1\1\1"))), "2 dimensions");
  expect_refused(batch_packet(assigns(shards(2))), "expected 4 types");
  expect_refused(batch_packet(good_assigns, 64), "0 are left");
  expect_refused(batch_packet(good_assigns, 192), "64 bytes more");

  const auto update = [&](std::uint64_t num_slots, std::size_t slots, const std::string& versions,
                          const std::string& rule) {
    return batch_packet(updates(shards(2) + number(2, num_slots) +
                                bytes(3, std::string(8 * slots, 's')) + bytes(4, rule) +
                                heads(6, 2) + bytes(8, versions)));
  };
  EXPECT_EQ(decode_batch(update(3, 6, two, "r")).operations.size(), 2u);
  expect_refused(update(3, 7, two, "r"), "expected 6 slots");
  expect_refused(update(65, 130, two, "r"), "at most 64 slots");
  expect_refused(update(3, 6, three, "r"), "expected 2 versions");
  const std::string sparse = shards(2) + heads(6, 2) + bytes(8, two);
  EXPECT_EQ(decode_batch(batch_packet(updates(sparse + heads(9, 2)), 256)).operations.size(), 2u);
  expect_refused(batch_packet(updates(sparse + heads(9, 1)), 192), "expected 4 types");
  expect_refused(update(3, 6, two, std::string(internal::kLongestRule + 1, 'r')), "a text of");
}

TEST(OperationColumns, SoManyThatMemoryWouldRunOutAreRefused) {
  const auto reads = [](std::size_t count) {
    return operation(10, shards(count) + bytes(2, std::string(count, '\0')));
  };
  const std::size_t most = internal::kMostOperations;
  EXPECT_EQ(decode_batch(batch_packet(reads(most), 0)).operations.size(), most);
  expect_refused(batch_packet(reads(most + 1), 0), "got 65537");
  expect_refused(batch_packet(reads(most - 1) + reads(2), 0), "got 65537");
  expect_refused(batch_packet(reads(most) + bytes(7, bytes(8, "")), 0), "got 65537");
}

TEST(OperationColumns, AnswersThatDoNotFitAreRefused) {
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
  refused(answers("\1\4\3", 2, 3, 3), "no kind");
  refused(answers("\1\2\3", 1, 3, 3), "expected 4 types");
  refused(answers("\1\2\3", 2, 2, 3), "expected 3 versions");
  refused(answers("\1\2\3", 2, 3, 4), "expected 3 numbers of steps");
  const std::size_t many = internal::kMostOperations + 1;
  refused(answers(std::string(many, '\0'), 0, many, many), "got 65537");
}

}  // namespace ps_columns
}  // namespace
}  // namespace tutti
