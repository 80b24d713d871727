// Snapshots of servers as files: every bit comes back, every changed or missing byte is found.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/file.h"
#include "tests/strategy/parameter_server/durable_helpers.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti::durable_tests {

using namespace store_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 9000;  // 72 KB

UpdateShard gradient_of_rank(int rank) {
  UpdateShard update{whole("rows", {kRows, 2}).id(), {}, describe_update_rule(SgdRule())};
  update.scalars.learning_rate = 0.5;
  update.rows = rows_of({rank, kRows - 1});
  update.gradient = Tensor::full({2, 2}, rank + 0.25);
  update.sync = SyncSpec{0, rank, 3, 3, 3.0};
  return update;
}

/// Types and shapes of all kinds, two of three gradients of a step, changes of clients and
/// closures.
SavedSnapshot everything() {
  VariableStore store("ps 1", 2);
  Client client(store, 77);
  Client closure(store, 12, UpdateStream::Kind::kClosure);
  const ShardSpec shard{"cut", DType::kFloat64, {10, 3}, 1, 4, 3, 3};
  client.call({CreateShard{whole("rows", {kRows, 2}), random_normal({kRows, 2}, RandomKey{5})},
               CreateShard{whole("count", {}, DType::kInt64), Tensor::scalar(-3, DType::kInt64)},
               CreateShard{whole("flag", {2}, DType::kBool), Tensor::full({2}, 1.0, DType::kBool)},
               CreateShard{whole("none", {0, 4}), Tensor::zeros({0, 4})},
               CreateShard{shard, Tensor::full({3, 3}, 0.1, DType::kFloat64)}});
  client.call({AssignShard{shard.id(), AssignOp::kAdd, Tensor::ones({3, 3}, DType::kFloat64)},
               gradient_of_rank(0)});
  client.call({gradient_of_rank(2)});
  closure.call(
      {AssignShard{whole("count", {}).id(), AssignOp::kAdd, Tensor::scalar(1, DType::kInt64)}});
  return {{"a job", 1, 2, 12, 5}, store.snapshot()};
}

TEST(SnapshotFile, GivesBackEveryBitAndWhatIsHeldOfAStep) {
  const SavedSnapshot saved = everything();
  const std::string bytes = file_of(saved);
  const SavedSnapshot read = read_bytes(bytes);
  EXPECT_EQ(read.label, saved.label);
  EXPECT_EQ(file_of(read), bytes);
  VariableStore before("ps 1", 2), after("ps 1", 2);
  before.restore(saved.snapshot);
  after.restore(read.snapshot);
  EXPECT_EQ(state_of(after), state_of(before));
  EXPECT_EQ(after.statistics().num_shards, 5u);
  for (VariableStore* store : {&before, &after}) {
    Client client(*store, 78);
    client.call({gradient_of_rank(1)});  // completes the step
  }
  EXPECT_EQ(state_of(after), state_of(before));
  EXPECT_NE(state_of(after), [&] {
    VariableStore store("ps 1", 2);
    store.restore(saved.snapshot);
    return state_of(store);
  }());
}

void expect_found(const std::string& damaged, const std::string& what) {
  try {
    (void)read_bytes(damaged);
    ADD_FAILURE() << what << " was not found";
  } catch (const Error& error) {
    const bool is_format = error.code() == ErrorCode::kUnimplemented;
    EXPECT_TRUE(is_format || error.code() == ErrorCode::kDataLoss) << error.what();
    EXPECT_THAT(error.message(), HasSubstr("/some/ps_0: offset ")) << what;
    EXPECT_THAT(error.message(), HasSubstr("expected ")) << what;
    EXPECT_THAT(error.message(), HasSubstr(", found ")) << what;
  }
}

TEST(SnapshotFile, EveryChangedBitIsFound) {
  std::string bytes = file_of(everything());
  ASSERT_GT(bytes.size(), std::size_t{70} << 10);
  // All bits of the label and the first shards' heads, and of the end; else one of some.
  const RandomStream random({.seed = 3});
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    const bool is_edge = place < 600 || place + 600 > bytes.size();
    const std::uint64_t only = random.below(place, 8);
    if (!is_edge && place % 23 != 0) continue;
    for (std::uint64_t bit = 0; bit < 8; ++bit) {
      if (!is_edge && bit != only) continue;
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
      expect_found(bytes, concat("bit ", bit, " of byte ", place));
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SnapshotFile, EveryMissingEndIsFoundAndEveryByteTooMany) {
  const std::string bytes = file_of(everything());
  for (std::size_t size = 0; size < bytes.size();) {
    const bool is_edge = size < 600 || size + 600 > bytes.size();
    expect_found(bytes.substr(0, size), concat("a cut at ", size));
    if (::testing::Test::HasFailure()) return;
    size += is_edge ? 1 : 23;
  }
  expect_found(bytes + '\0', "a byte too many");
  expect_found(bytes + bytes, "a file behind it");
}

TEST(SnapshotFile, PiecesOfAnotherSnapshotAreFound) {
  SavedSnapshot saved = everything();
  const std::string bytes = file_of(saved);
  ++saved.label.cut;
  const std::string other = file_of(saved);
  ASSERT_EQ(other.size(), bytes.size());
  const auto differing = std::mismatch(bytes.begin(), bytes.end(), other.begin());
  const auto label = static_cast<std::size_t>(differing.first - bytes.begin());
  for (std::size_t place = label + 32; place < bytes.size(); place += 997) {
    expect_found(bytes.substr(0, place) + other.substr(place), concat("a mixture at ", place));
  }
}

TEST(SnapshotFile, ErrorsSayWhatIsWrongWhere) {
  const std::string bytes = file_of(everything());
  expect_error(
      ErrorCode::kDataLoss,
      {"/some/ps_0: offset 0: expected a file that begins with 'TUTTIPSS'", "found 'a checkp'"},
      [] { (void)read_bytes("a checkpoint, say, or a picture"); });
  expect_error(ErrorCode::kDataLoss, {" bytes of a record, found ", "cut off"},
               [&] { (void)read_bytes(bytes.substr(0, 5000)); });
}

TEST(SnapshotFile, AnotherFormatIsRefusedByItsNumber) {
  for (const std::uint32_t other : {3U, 5U}) {  // 3 had blocks of 64 KiB
    std::string bytes;
    const internal::RecordWriter out(
        {"TUTTIPSS", other}, {}, [&](std::span<const std::byte> piece) {
          bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        });
    expect_error(ErrorCode::kUnimplemented,
                 {concat("offset 8: expected format 4, found ", other), "try"},
                 [&] { (void)read_bytes(bytes); });
  }
}

TEST(SnapshotFolder, KeepsTheCutThatCountsAndTheNewOne) {
  const OwnFolder folder("snapshots");
  const SnapshotFolder saved(folder.path(), "job", 0, 2);
  const SnapshotFolder other_server(folder.path(), "job", 1, 2);
  other_server.save(1, 1, all_values(50), 0);
  EXPECT_THAT(saved.cuts(), ElementsAre());
  saved.save(1, 1, all_values(1), 0);
  saved.save(2, 1, all_values(2), 1);
  EXPECT_THAT(saved.cuts(), ElementsAre(1, 2));
  saved.save(3, 1, all_values(3), 1);  // cut 2 was never taken
  EXPECT_THAT(saved.cuts(), ElementsAre(1, 3));
  saved.save(10, 2, all_values(10), 3);
  EXPECT_THAT(saved.cuts(), ElementsAre(3, 10));
  EXPECT_EQ(number_of(saved.load(3).snapshot), 3);
  const SavedSnapshot newest = saved.load(10);
  EXPECT_EQ(newest.label, (internal::SnapshotLabel{"job", 0, 2, 10, 2}));
  EXPECT_EQ(number_of(newest.snapshot), 10);
  EXPECT_EQ(number_of(other_server.load(1).snapshot), 50);
  expect_error(ErrorCode::kNotFound, {"ps_0_of_2.cut_2", "found those of 3, 10"},
               [&] { (void)saved.load(2); });
}

TEST(SnapshotFolder, ALateRequestForASavedCutChangesNothing) {
  const OwnFolder folder("late");
  const SnapshotFolder saved(folder.path(), "job", 0, 1);
  saved.save(1, 1, all_values(1), 0);
  saved.save(2, 1, all_values(2), 1);
  saved.save(1, 1, all_values(9), 0);
  EXPECT_EQ(number_of(saved.load(1).snapshot), 1);
  EXPECT_EQ(number_of(saved.load(2).snapshot), 2);
}

TEST(SnapshotFolder, RefusesWhatBelongsToAnotherJob) {
  const OwnFolder folder("foreign");
  SnapshotFolder(folder.path(), "first job", 0, 1).save(1, 1, all_values(1), 0);
  expect_error(ErrorCode::kFailedPrecondition,
               {"ps_0_of_1.cut_1: expected cut 1 of server 0 of 1 in job 'second job'",
                "found cut 1 of server 0 of 1 in job 'first job'", "try another folder"},
               [&] { SnapshotFolder(folder.path(), "second job", 0, 1); });
  std::filesystem::rename(folder.path() + "/ps_0_of_1.cut_1", folder.path() + "/ps_0_of_1.cut_2");
  expect_error(ErrorCode::kFailedPrecondition, {"expected cut 2", "found cut 1"},
               [&] { SnapshotFolder(folder.path(), "first job", 0, 1); });
}

TEST(SnapshotFolder, DamagedSnapshotFallsBackToThePreviousOne) {
  const OwnFolder folder("damaged");
  const SnapshotFolder saved(folder.path(), "job", 0, 1);
  saved.save(1, 1, all_values(1), 0);
  saved.save(2, 1, all_values(2), 1);
  const std::string newest = folder.path() + "/ps_0_of_1.cut_2";
  const std::string whole = read_file(newest);
  const RandomStream random({.seed = 8});
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::string damaged = whole;
    const std::uint64_t place = random.below(2 * i, damaged.size());
    const std::uint64_t bit = random.below(2 * i + 1, 8);
    damaged[place] = static_cast<char>(damaged[place] ^ (1 << bit));
    write_file_atomically(newest, i % 4 == 0 ? whole.substr(0, place) : damaged);
    if (i % 4 != 0 && place >= 8 && place < 12) continue;  // another format
    expect_error(ErrorCode::kDataLoss, {newest, "offset "}, [&] { (void)saved.load(2); });
    EXPECT_EQ(number_of(saved.load(1).snapshot), 1);
  }
  // One that is not read does not keep the others from being used; its name is in the log.
  const KeptWarnings warnings;
  const SnapshotFolder again(folder.path(), "job", 0, 1);
  EXPECT_EQ(number_of(again.load(1).snapshot), 1);
  write_file_atomically(newest, "no snapshot");
  EXPECT_EQ(number_of(SnapshotFolder(folder.path(), "job", 0, 1).load(1).snapshot), 1);
  ASSERT_FALSE(warnings.lines.empty());
  EXPECT_THAT(warnings.lines.back(), HasSubstr(newest));
}

}  // namespace tutti::durable_tests
