// Tests the variable store: values bit-identical to local variables', exactly-once changes, and
// batches that are applied entirely or not at all.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_store.h"

#include <atomic>

#include "strategy/parameter_server/server/stored_shard.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {
namespace variable_store {

using namespace store_tests;
using ::testing::HasSubstr;

class VariableStore : public ::testing::Test {
 protected:
  internal::VariableStore store_{"ps 0"};
  Client client_{store_, 1};
};

constexpr RandomKey kKey{5, kInitializerPurpose, 1};

ValueGenerator normal(const Shape& shape, DType dtype = DType::kFloat32) {
  return {ValueGenerator::Kind::kNormal, 0.0, 1.0, kKey, dtype, shape};
}
Tensor noise(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{7, kUserPurpose, number});
}

TEST_F(VariableStore, EachShardHoldsItsRowsOfInitialValue) {
  const Shape shape{10, 3};
  const Tensor expected = normal(shape).rows(0, 10);
  std::int64_t first = 0;
  for (int shard = 0; shard < 3; ++shard) {
    const std::int64_t count = shard == 0 ? 4 : 3;
    const ShardSpec spec{"emb", DType::kFloat32, shape, shard, 3, first, count};
    client_.call({CreateShard{spec, normal(shape)}});
    expect_same_bits(client_.read(spec.id()), expected.detached_rows(first, count));
    first += count;
  }
  const ShardSpec bias = whole("bias", {});
  const auto answers =
      client_.call({CreateShard{bias, Tensor::scalar(2.5, DType::kFloat32)}, ReadShard{bias.id()}});
  EXPECT_EQ(answers[0].version, 1u);
  expect_tensor(*answers[1].value, {}, {2.5});
}

TEST_F(VariableStore, CreatingExistingShardKeepsValuesAndChecksSpec) {
  const ShardSpec spec = whole("w", {4});
  client_.call({CreateShard{spec, Tensor::ones({4})}, addition(spec.id(), Tensor::ones({4}))});
  const auto again = client_.call({CreateShard{spec, Tensor::zeros({4})}, ReadShard{spec.id()}});
  EXPECT_EQ(again[0].version, 2u);
  expect_tensor(*again[1].value, {4}, {2, 2, 2, 2});
  EXPECT_ERROR(client_.call({CreateShard{whole("w", {5}), Tensor::ones({5})}}), kInvalidArgument,
               "ps 0: ", "'w'", "[4]", "[5]");
  EXPECT_ERROR(
      client_.call({CreateShard{whole("w", {4}, DType::kFloat64), normal({4}, DType::kFloat64)}}),
      kInvalidArgument, "'w'", "float64");
  EXPECT_ERROR(client_.call({CreateShard{whole("v", {4}), Tensor::ones({3})}}), kInvalidArgument,
               "'v'", "[4]", "[3]");
  EXPECT_ERROR(client_.call({CreateShard{whole("v", {4}), normal({5})}}), kInvalidArgument, "'v'",
               "generator");
}

TEST_F(VariableStore, AssignmentsAndScattersMatchLocalVariableBitForBit) {
  const ShardSpec spec = whole("w", {6, 5});
  Variable local(normal({6, 5}).rows(0, 6), {.name = "local"});
  client_.call({CreateShard{spec, normal({6, 5})}});
  std::uint64_t number = 0;
  for (const AssignOp op : {AssignOp::kAdd, AssignOp::kSubtract, AssignOp::kAssign}) {
    const Tensor value = noise({6, 5}, number++);
    client_.call({AssignShard{spec.id(), op, value}});
    local.storage().assign(op, value, ValueOrigin::kComputed);
    expect_same_bits(client_.read(spec.id()), local.value());
  }
  const Tensor rows = rows_of({4, 0, 4, 2});
  for (const ScatterOp op :
       {ScatterOp::kAdd, ScatterOp::kSubtract, ScatterOp::kMultiply, ScatterOp::kDivide,
        ScatterOp::kMin, ScatterOp::kMax, ScatterOp::kUpdate}) {
    const Tensor values = noise({4, 5}, number++);
    client_.call({ScatterShard{spec.id(), op, rows, values}});
    local.storage().scatter(op, {values, rows, {6, 5}});
    expect_same_bits(client_.read(spec.id()), local.value());
  }
  const auto read = client_.call({ReadRows{spec.id(), rows_of({5, 1})}});
  expect_same_bits(*read[0].value, Tensor::from({2, 5}, [&] {
    std::vector<float> both;
    for (const std::int64_t row : {5, 1}) {
      const auto part = local.value().detached_rows(row, 1).host_span<float>();
      both.insert(both.end(), part.begin(), part.end());
    }
    return both;
  }()));
  client_.call({AssignShard{spec.id(), AssignOp::kAssign, Tensor::ones({6, 5})}});
  expect_same_bits(client_.read(spec.id()), Tensor::ones({6, 5}));
}

/// Compares updates to a variable in the store with the same updates to a local variable.
/// `by_rows`: sparse updates of a few rows instead of dense updates.
void expect_updates_as_local(const UpdateRule& rule, const Shape& shape, int num_steps,
                             bool by_rows) {
  SCOPED_TRACE(concat(rule.name(), by_rows ? " by rows" : " dense"));
  internal::VariableStore store("ps 0");
  Client client(store, 1);
  Variable local(normal(shape).rows(0, shape[0]), {.name = "local"});
  const ShardId id = client.create(whole("w", shape), local.value());
  std::vector<ShardId> slots;
  std::vector<Variable> local_slots;
  for (const SlotSpec& slot : rule.slots()) {
    local_slots.push_back(local.storage().create_slot(slot.name, slot.initial_value));
    slots.push_back(client.create(whole(concat("w/", slot.name), shape),
                                  Tensor::full(shape, slot.initial_value)));
  }
  for (int step = 0; step < num_steps; ++step) {
    const auto number = static_cast<std::uint64_t>(step);
    UpdateShard update{id, slots, describe_update_rule(rule)};
    update.scalars = {
        .learning_rate = 0.05, .iteration = step, .gradient_scale = 0.5, .weight_decay = 0.01};
    update.gradient = noise(by_rows ? shape.with_dim(0, 4) : shape, number);
    if (by_rows) update.rows = rows_of({6, 1, 6, 3});
    const Gradient gradient = by_rows
                                  ? Gradient(IndexedSlices{update.gradient, *update.rows, shape})
                                  : Gradient(update.gradient);
    client.call({update});
    local.storage().update(rule, local_slots, gradient, update.scalars);
    expect_same_bits(client.read(id), local.value());
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    expect_same_bits(client.read(slots[i]), local_slots[i].value());
  }
}

TEST_F(VariableStore, EveryUpdateRuleMatchesLocalVariableBitForBit) {
  const Variable variable(Tensor::zeros({1}));
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name, std::span(&variable, 1));
    for (const bool by_rows : {false, true}) {
      expect_updates_as_local(optimizer->rule(), {7, 3}, 5, by_rows);
    }
  }
}

/// Rule that counts its calls, and fails if the weights begin at the address `refused`.
class Watched final : public UpdateRule {
 public:
  std::string_view name() const override { return "watched"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs& args) const override {
    ++num_runs;
    num_elements += args.count;
    if (args.weights_data == refused) fail(ErrorCode::kInternal, "refused");
  }
  mutable std::atomic<int> num_runs{0};
  mutable std::atomic<std::size_t> num_elements{0};
  const void* refused = nullptr;
};

// Number of float32 elements; their bytes do not fill a whole number of cache lines.
constexpr std::int64_t kMany = (9 << 20) / 4 + 13;

TEST(HalvedRule, OnlyLongUpdatesAreSplit) {
  const Watched watched;
  const internal::HalvedRule rule(watched);
  std::vector<float> weights(kMany), gradient(kMany);
  rule.apply({DType::kFloat32, 1000, weights.data(), {}, gradient.data(), {}});
  EXPECT_EQ(watched.num_runs, 1);
  EXPECT_EQ(watched.num_elements, 1000u);
  rule.apply({DType::kFloat32, weights.size(), weights.data(), {}, gradient.data(), {}});
  EXPECT_EQ(watched.num_runs, num_hardware_threads() > 1 ? 3 : 2);
  EXPECT_EQ(watched.num_elements, 1000u + weights.size());
}

TEST(HalvedRule, ErrorInEitherHalfFailsUpdate) {
  std::vector<float> weights(kMany), gradient(kMany);
  const std::size_t half = weights.size() / 2 / 64 * 64;
  for (const std::size_t begin : {std::size_t{0}, half}) {
    if (begin > 0 && num_hardware_threads() < 2) continue;
    Watched watched;
    watched.refused = weights.data() + begin;
    const internal::HalvedRule rule(watched);
    EXPECT_ERROR(
        rule.apply({DType::kFloat32, weights.size(), weights.data(), {}, gradient.data(), {}}),
        kInternal, "refused");
  }
}

TEST(HalvedRule, LargeServerVariableMatchesLocalBitForBit) {
  const Shape shape{kMany / 16, 16};
  expect_updates_as_local(SgdRule(), shape, 2, false);
  expect_updates_as_local(SgdRule(), shape, 2, true);
  expect_updates_as_local(SgdRule::nesterov(0.9), shape, 2, false);
  expect_updates_as_local(AdamRule(), shape, 2, false);
}

TEST_F(VariableStore, ReadOmitsValueThatClientAlreadyHas) {
  const ShardId id = client_.create(whole("w", {2}), Tensor::zeros({2}));
  const auto first = client_.call({ReadShard{id}})[0];
  EXPECT_FALSE(client_.call({ReadShard{id, first.version}})[0].value.has_value());
  client_.call({addition(id, Tensor::ones({2}))});
  const auto second = client_.call({ReadShard{id, first.version}})[0];
  EXPECT_EQ(second.version, first.version + 1);
  expect_tensor(*second.value, {2}, {1, 1});
  expect_tensor(*first.value, {2}, {0, 0});  // a value that was read never changes
  EXPECT_EQ(store_.counts().num_reads, 3u);
  EXPECT_EQ(store_.counts().num_reads_unchanged, 1u);
}

TEST_F(VariableStore, RepeatedBatchChangesNothing) {
  const ShardId id = client_.create(whole("w", {2}), Tensor::zeros({2}));
  const OperationBatch batch =
      client_.batch({addition(id, Tensor::ones({2})), ReadShard{id},
                     ScatterShard{id, ScatterOp::kAdd, rows_of({1}), Tensor::ones({1})}});
  const auto once = store_.start(batch)->wait(soon());
  const std::string state = state_of(store_);
  for (int i = 0; i < 3; ++i) {
    const auto again = store_.start(batch)->wait(soon());
    EXPECT_FALSE(once[0].was_applied_before);
    EXPECT_TRUE(again[0].was_applied_before);
    EXPECT_TRUE(again[2].was_applied_before);
    EXPECT_EQ(again[2].version, once[2].version);
    expect_tensor(*again[1].value, {2}, {1, 2});
    EXPECT_EQ(state_of(store_), state);
  }
  // This batch repeats an applied change and adds a new one: only the new one is applied.
  client_.go_back_to(1);
  const auto longer =
      client_.call({ScatterShard{id, ScatterOp::kAdd, rows_of({1}), Tensor::ones({1})},
                    addition(id, Tensor::ones({2}))});
  EXPECT_TRUE(longer[0].was_applied_before);
  EXPECT_FALSE(longer[1].was_applied_before);
  expect_tensor(client_.read(id), {2}, {2, 3});
  EXPECT_EQ(store_.counts().num_changes, 3u);
  EXPECT_EQ(store_.counts().num_applied_before, 7u);
}

TEST_F(VariableStore, RetriedClosureCountsOnce) {
  const ShardId id = whole("w", {}).id();
  Client first(store_, 17, UpdateStream::Kind::kClosure),
      second(store_, 17, UpdateStream::Kind::kClosure);
  first.call({CreateShard{whole("w", {}), Tensor(0.0f)}});
  const auto increment = [&] { return addition(id, Tensor(1.0f)); };
  first.call({increment(), increment()});  // from here on, the first worker is presumed dead
  second.call({increment(), increment(), increment()});
  expect_tensor(first.read(id), {}, {3});
  // The coordinator's watermark shows that the closure has finished; then the first worker resumes.
  OperationBatch news;
  news.finished_below = 18;
  store_.start(news)->wait(soon());
  EXPECT_ERROR(first.call({increment()}), kAborted, "ps 0: ", "closure 17", "finished");
  expect_tensor(second.read(id), {}, {3});
}

/// Returns operations that cannot be applied, each with fragments of its error message.
std::vector<std::pair<std::vector<std::string>, Operation>> bad_operations() {
  const ShardId w = whole("w", {4, 2}).id(), n = whole("n", {3}, DType::kInt32).id();
  const ShardId slot = whole("slot", {4, 2}).id(), other = whole("other", {5, 2}).id();
  const auto update = [&](std::vector<ShardId> slots, const char* rule, const Tensor& gradient) {
    UpdateShard made{w, std::move(slots), rule};
    made.gradient = gradient;
    made.scalars.learning_rate = 0.1;
    return made;
  };
  const char* const plain = R"({"rule":"sgd","momentum":0.0,"nesterov":false})";
  const char* const momentum = R"({"rule":"sgd","momentum":0.5,"nesterov":false})";
  const Tensor fits = Tensor::ones({4, 2});
  UpdateShard bad_rows = update({}, plain, Tensor::ones({2, 2}));
  bad_rows.rows = rows_of({1, 4});
  UpdateShard bad_rank = update({}, plain, fits);
  bad_rank.sync = SyncSpec{.step = 0, .rank = 2, .num_ranks = 2, .num_to_aggregate = 2};
  UpdateShard of_integers = update({}, plain, Tensor::from<std::int32_t>({3}, {1, 2, 3}));
  of_integers.shard = n;
  return {
      {{"no shard with the id 12345"}, addition(12345, fits)},
      {{"no shard"}, ReadShard{12345}},
      {{"'w'", "[4, 2]", "[2, 4]"}, addition(w, Tensor::ones({2, 4}))},
      {{"'w'", "float64"}, addition(w, Tensor::ones({4, 2}, DType::kFloat64))},
      {{"'w'", "undefined"}, addition(w, Tensor())},
      {{"'w'", "expected 0 .. 3, got 4 at position 1"},
       ScatterShard{w, ScatterOp::kAdd, rows_of({1, 4}), Tensor::ones({2, 2})}},
      {{"'w'", "got -1 at position 0"}, ReadRows{w, rows_of({-1})}},
      {{"'w'", "rows"}, ReadRows{w, Tensor::ones({2})}},
      {{"'w'", "[2, 2]", "[3, 2]"},
       ScatterShard{w, ScatterOp::kAdd, rows_of({1, 2}), Tensor::ones({3, 2})}},
      {{"'n'", "zero"},
       ScatterShard{n, ScatterOp::kDivide, rows_of({1}), Tensor::from<std::int32_t>({1}, {0})}},
      {{"'w'", "[4, 2]"}, AssignShard{w, AssignOp::kAssign, Tensor::ones({4})}},
      {{"'w'", "got 4 at position 1"}, bad_rows},
      {{"'w'", "rank 2 of 2"}, bad_rank},
      {{"'w'", "[4, 2]", "[4]"}, update({}, plain, Tensor::ones({4}))},
      {{"'w'", "expected 1 slots for sgd, got 0"}, update({}, momentum, fits)},
      {{"'w'", "expected 0 slots for sgd, got 1"}, update({slot}, plain, fits)},
      {{"'w'", "'other'"}, update({other}, momentum, fits)},
      {{"'w'"}, update({w}, momentum, fits)},
      {{"no shard"}, update({12345}, momentum, fits)},
      {{"no rule 'sdg'"}, update({}, R"({"rule":"sdg"})", fits)},
      {{"'n'", "int32"}, of_integers},
      {{"'other'", "[5, 2]"}, CreateShard{whole("other", {6, 2}), Tensor::ones({6, 2})}},
  };
}

TEST_F(VariableStore, FailedOperationRollsBackWholeBatch) {
  const ShardId w = whole("w", {4, 2}).id();
  client_.call(
      {CreateShard{whole("w", {4, 2}), normal({4, 2})},
       CreateShard{whole("slot", {4, 2}), Tensor::zeros({4, 2})},
       CreateShard{whole("other", {5, 2}), Tensor::zeros({5, 2})},
       CreateShard{whole("n", {3}, DType::kInt32), Tensor::from<std::int32_t>({3}, {1, 2, 3})},
       addition(w, Tensor::ones({4, 2}))});
  const std::string state = state_of(store_);
  for (const auto& [parts, bad] : bad_operations()) {
    SCOPED_TRACE(parts.front());
    const ShardSpec late = whole("late", {2});
    OperationBatch batch =
        client_.batch({addition(w, Tensor::ones({4, 2})), CreateShard{late, Tensor::zeros({2})},
                       addition(late.id(), Tensor::ones({2})), bad});
    client_.go_back_to(1);
    const Error error = strategy_tests::error_of([&] { store_.start(batch)->wait(soon()); });
    EXPECT_THAT(error.message(), HasSubstr("ps 0: operation 3 of 4"));
    for (const std::string& part : parts) EXPECT_THAT(error.message(), HasSubstr(part));
    EXPECT_EQ(state_of(store_), state);
  }
  client_.call({addition(w, Tensor::ones({4, 2}))});  // the store remains usable
  EXPECT_NE(state_of(store_), state);
}

TEST_F(VariableStore, NormBasedRuleRejectsShard) {
  const ShardSpec half{"w", DType::kFloat32, {4}, 0, 2, 0, 2},
      slot{"m", DType::kFloat32, {4}, 0, 2, 0, 2};
  client_.call({CreateShard{half, Tensor::ones({2})}, CreateShard{slot, Tensor::ones({2})}});
  UpdateShard update{half.id(), {slot.id()}, describe_update_rule(LarsRule())};
  update.gradient = Tensor::ones({2});
  EXPECT_ERROR(client_.call({update}), kInvalidArgument, "'w' (shard 0 of 2)", "lars", "norm");
}

TEST_F(VariableStore, ConcurrentIncrementsByTwoClientsAreAllCounted) {
  const ShardSpec specs[] = {whole("a", {64}), whole("b", {3, 5}), whole("c", {})};
  expect_on_ranks(2, [&](int number) {
    Client client(store_, static_cast<std::uint64_t>(number));
    for (const ShardSpec& spec : specs) {
      client.call({CreateShard{spec, Tensor::zeros(spec.whole_shape)}});
    }
    for (int i = 0; i < 1000; ++i) {
      std::vector<Operation> operations;
      for (int k = 0; k < 3; ++k) {  // the order of the shards varies with i
        const ShardSpec& spec = specs[(k + i + number) % 3];
        operations.push_back(addition(spec.id(), Tensor::ones(spec.whole_shape)));
        if (i % 50 == 0) operations.push_back(ReadShard{spec.id()});
      }
      const OperationBatch batch = client.batch(std::move(operations));
      (void)store_.start(batch)->wait(soon());
      // The batch is sent twice, as after a broken connection.
      if (i % 7 == 0) (void)store_.start(batch)->wait(soon());
    }
  });
  Client reader(store_, 9);
  for (const ShardSpec& spec : specs) {
    expect_same_bits(reader.read(spec.id()), Tensor::full(spec.whole_shape, 2000.0));
  }
  EXPECT_EQ(store_.counts().num_changes, 6000u);
  EXPECT_EQ(store_.counts().num_applied_before, 2u * 143 * 3);
}

using Kind = internal::StoreOrder::Kind;

TEST_F(VariableStore, FreezeTakesSnapshotBetweenBatches) {
  const ShardSpec a = whole("a", {256}), b = whole("b", {256});
  Client(store_, 9).call(
      {CreateShard{a, Tensor::zeros({256})}, CreateShard{b, Tensor::zeros({256})}});
  std::uint64_t num_freezes = 0;
  expect_on_ranks(3, [&](int number) {
    Client client(store_, static_cast<std::uint64_t>(number + 1));
    for (int i = 0; i < 100; ++i) {
      if (number < 2) {
        client.call({addition(a.id(), Tensor::ones({256})), addition(b.id(), Tensor::ones({256}))});
        continue;
      }
      (void)obey(store_, {.kind = Kind::kFreeze, .number = ++num_freezes});
      const auto read =
          obey(store_, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}, ReadShard{b.id()}});
      expect_same_bits(*read[1].value, *read[2].value);
      const auto again = obey(store_, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}});
      expect_same_bits(*again[1].value, *read[1].value);
    }
  });
  Client client(store_, 8);
  expect_same_bits(client.read(a.id()), Tensor::full({256}, 200.0));
  // An order that is resent after a broken connection is not executed a second time.
  const auto frozen = [&] {
    return *obey(store_, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}})[1].value;
  };
  const Tensor before = frozen();
  client.call({addition(a.id(), Tensor::ones({256}))});
  (void)obey(store_, {.kind = Kind::kFreeze, .number = num_freezes});
  expect_same_bits(frozen(), before);
  (void)obey(store_, {.kind = Kind::kFreeze, .number = ++num_freezes});
  expect_same_bits(frozen(), Tensor::full({256}, 201.0));
  (void)obey(store_, {.kind = Kind::kRelease});
  EXPECT_ERROR(obey(store_, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}}), kAborted, "frozen");
}

TEST_F(VariableStore, ClosedStoreDefersBatchesUntilOpened) {
  internal::VariableStore store("ps 0", 0, /*is_open=*/false);
  const ShardSpec spec = whole("w", {});
  Client client(store, 1);
  const auto created = client.start({CreateShard{spec, Tensor(1.0f)}});
  const auto read = client.start({ReadShard{spec.id()}});
  EXPECT_FALSE(created->is_ready());
  (void)obey(store, {.kind = Kind::kOpen});
  (void)created->wait(soon());
  expect_same_bits(*read->wait(soon()).front().value, Tensor(1.0f));
}

TEST_F(VariableStore, RestoreSetsExistingAndNewShards) {
  const ShardSpec old = whole("old", {2}), made = whole("new", {2});
  client_.call({CreateShard{old, Tensor::zeros({2})}});
  Client before(store_, internal::closure_id(1, 3), UpdateStream::Kind::kClosure);
  before.call({addition(old.id(), Tensor::ones({2}))});
  const auto known = client_.call({ReadShard{old.id()}}).front();
  (void)obey(store_, {.kind = Kind::kClose, .generation = 2, .number = internal::closure_id(2, 0)});
  const auto held = before.start({addition(old.id(), Tensor::ones({2}))});
  const auto answers =
      obey(store_, {.kind = Kind::kRestore, .generation = 2},
           {CreateShard{old, Tensor::full({2}, 7.0)}, CreateShard{made, Tensor::full({2}, 8.0)}});
  EXPECT_EQ(answers.size(), 3u);
  EXPECT_FALSE(held->is_ready());
  (void)obey(store_, {.kind = Kind::kOpen, .generation = 2, .number = internal::closure_id(2, 3)});
  EXPECT_ERROR(held->wait(soon()), kAborted, "closure 3", "restored from a checkpoint");
  Client after(store_, 2);
  const auto read = after.call({ReadShard{old.id(), known.version}, ReadShard{made.id()}});
  ASSERT_TRUE(read[0].value.has_value());
  expect_same_bits(*read[0].value, Tensor::full({2}, 7.0));  // the client had an older version
  expect_same_bits(*read[1].value, Tensor::full({2}, 8.0));
  EXPECT_GT(read[0].version, known.version);
  Client again(store_, internal::closure_id(2, 3), UpdateStream::Kind::kClosure);
  again.call({addition(old.id(), Tensor::ones({2}))});
  expect_same_bits(after.read(old.id()), Tensor::full({2}, 8.0));
}

TEST_F(VariableStore, CommandsFromDifferentRunOrGenerationAreRejected) {
  internal::VariableStore store("ps 0", 0, /*is_open=*/false);
  const auto order = [&](Kind kind, std::uint64_t generation) {
    return obey(store, {.kind = kind, .generation = generation});
  };
  EXPECT_ERROR(order(Kind::kOpen, 4), kAborted, "ps 0", "generation 0", "4", "restarted");
  (void)order(Kind::kClose, 4);
  EXPECT_ERROR(order(Kind::kClose, 3), kAborted, "generation 4");
  EXPECT_ERROR(order(Kind::kFreeze, 3), kAborted, "generation 4");
  (void)order(Kind::kOpen, 4);
  (void)order(Kind::kOpen, 4);  // the store is already open
  OperationBatch other;
  other.operations = {internal::StoreOrder{.kind = Kind::kClose, .run = 2, .generation = 9}};
  EXPECT_ERROR(store.start(other)->wait(soon()), kAborted, "chief has exited");
  Client client(store, 1), stray(store, internal::closure_id(4, 0), UpdateStream::Kind::kClosure);
  client.call({CreateShard{whole("v", {}), Tensor(1.0f)}});
  stray.run = 2;
  EXPECT_ERROR(stray.call({AssignShard{whole("v", {}).id(), AssignOp::kAdd, Tensor(1.0f)}}),
               kAborted, "closure 0", "chief has exited");
  EXPECT_ERROR(client.call({internal::ReadAwaited{}, internal::StoreOrder{}}), kInvalidArgument,
               "only as the first operation");
  EXPECT_ERROR(obey(store, {.kind = Kind::kRestore, .generation = 4},
                    {CreateShard{whole("w", {2}), ValueGenerator{}}}),
               kInvalidArgument, "");
}

}  // namespace variable_store
}  // namespace
}  // namespace tutti
