// The variable store: the bits of local variables, each change once, batches whole or not at all.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_store.h"

#include <functional>
#include <memory>

#include "tests/strategy/parameter_server/store_helpers.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {
namespace variable_store {

using namespace store_tests;

constexpr RandomKey kKey{5, kInitializerPurpose, 1};

ValueGenerator normal(const Shape& shape, DType dtype = DType::kFloat32) {
  return {ValueGenerator::Kind::kNormal, 0.0, 1.0, kKey, dtype, shape};
}
Tensor noise(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{7, kUserPurpose, number});
}

TEST(VariableStore, MakesShardsWhoseRowsAreThoseOfTheWhole) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const Shape shape{10, 3};
  const Tensor expected = normal(shape).rows(0, 10);
  std::int64_t first = 0;
  for (int shard = 0; shard < 3; ++shard) {
    const std::int64_t count = shard == 0 ? 4 : 3;
    const ShardSpec spec{"emb", DType::kFloat32, shape, shard, 3, first, count};
    client.call({CreateShard{spec, normal(shape)}});
    expect_same_bits(client.read(spec.id()), expected.detached_rows(first, count));
    first += count;
  }
  const ShardSpec bias = whole("bias", {});
  const auto answers =
      client.call({CreateShard{bias, Tensor::scalar(2.5, DType::kFloat32)}, ReadShard{bias.id()}});
  EXPECT_EQ(answers[0].version, 1u);
  expect_tensor(*answers[1].value, {}, {2.5});
  EXPECT_EQ(store.statistics().num_shards, 4u);
}

TEST(VariableStore, AShardThatIsThereKeepsItsValuesAndIsCompared) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardSpec spec = whole("w", {4});
  client.call({CreateShard{spec, Tensor::ones({4})},
               AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones({4})}});
  const auto again = client.call({CreateShard{spec, Tensor::zeros({4})}, ReadShard{spec.id()}});
  EXPECT_EQ(again[0].version, 2u);
  expect_tensor(*again[1].value, {4}, {2, 2, 2, 2});
  EXPECT_ERROR(client.call({CreateShard{whole("w", {5}), Tensor::ones({5})}}), kInvalidArgument,
               "ps 0: ", "'w'", "[4]", "[5]");
  EXPECT_ERROR(
      client.call({CreateShard{whole("w", {4}, DType::kFloat64), normal({4}, DType::kFloat64)}}),
      kInvalidArgument, "'w'", "float64");
  EXPECT_ERROR(client.call({CreateShard{whole("v", {4}), Tensor::ones({3})}}), kInvalidArgument,
               "'v'", "[4]", "[3]");
  EXPECT_ERROR(client.call({CreateShard{whole("v", {4}), normal({5})}}), kInvalidArgument, "'v'",
               "generator");
  EXPECT_EQ(store.statistics().num_shards, 1u);
}

TEST(VariableStore, AssignmentsAndScattersGiveTheBitsOfALocalVariable) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardSpec spec = whole("w", {6, 5});
  Variable local(normal({6, 5}).rows(0, 6), {.name = "local"});
  client.call({CreateShard{spec, normal({6, 5})}});
  std::uint64_t number = 0;
  for (const AssignOp op : {AssignOp::kAdd, AssignOp::kSubtract, AssignOp::kAssign}) {
    const Tensor value = noise({6, 5}, number++);
    client.call({AssignShard{spec.id(), op, value}});
    local.storage().assign(op, value, ValueOrigin::kComputed);
    expect_same_bits(client.read(spec.id()), local.value());
  }
  const Tensor rows = rows_of({4, 0, 4, 2});
  for (const ScatterOp op :
       {ScatterOp::kAdd, ScatterOp::kSubtract, ScatterOp::kMultiply, ScatterOp::kDivide,
        ScatterOp::kMin, ScatterOp::kMax, ScatterOp::kUpdate}) {
    const Tensor values = noise({4, 5}, number++);
    client.call({ScatterShard{spec.id(), op, rows, values}});
    local.storage().scatter(op, {values, rows, {6, 5}});
    expect_same_bits(client.read(spec.id()), local.value());
  }
  const auto read = client.call({ReadRows{spec.id(), rows_of({5, 1})}});
  expect_same_bits(*read[0].value, Tensor::from({2, 5}, [&] {
    std::vector<float> both;
    for (const std::int64_t row : {5, 1}) {
      const auto part = local.value().detached_rows(row, 1).host_span<float>();
      both.insert(both.end(), part.begin(), part.end());
    }
    return both;
  }()));
  client.call({AssignShard{spec.id(), AssignOp::kAssign, Tensor::ones({6, 5})}});
  expect_same_bits(client.read(spec.id()), Tensor::ones({6, 5}));
}

/// Five updates of a variable on the store and of a local one, dense or by rows.
void expect_updates_as_local(const std::string& optimizer_name, bool by_rows) {
  SCOPED_TRACE(concat(optimizer_name, by_rows ? " by rows" : " dense"));
  VariableStore store("ps 0");
  Client client(store, 1);
  Variable local(normal({7, 3}).rows(0, 7), {.name = "local"});
  const auto optimizer = make_optimizer(optimizer_name, std::span(&local, 1));
  const UpdateRule& rule = optimizer->rule();
  const ShardSpec spec = whole("w", {7, 3});
  std::vector<Operation> create = {CreateShard{spec, normal({7, 3})}};
  std::vector<ShardId> slots;
  std::vector<Variable> local_slots;
  for (const SlotSpec& slot : rule.slots()) {
    const ShardSpec own = whole(concat("w/", slot.name), {7, 3});
    create.push_back(CreateShard{own, Tensor::full({7, 3}, slot.initial_value)});
    slots.push_back(own.id());
    local_slots.push_back(local.storage().create_slot(slot.name, slot.initial_value));
  }
  client.call(create);
  for (int step = 0; step < 5; ++step) {
    const auto number = static_cast<std::uint64_t>(step);
    UpdateShard update{spec.id(), slots, describe_update_rule(rule)};
    update.scalars = {
        .learning_rate = 0.05, .iteration = step, .gradient_scale = 0.5, .weight_decay = 0.01};
    update.gradient = by_rows ? noise({4, 3}, number) : noise({7, 3}, number);
    if (by_rows) update.rows = rows_of({6, 1, 6, 3});
    const Gradient gradient = by_rows
                                  ? Gradient(IndexedSlices{update.gradient, *update.rows, {7, 3}})
                                  : Gradient(update.gradient);
    client.call({update});
    local.storage().update(rule, local_slots, gradient, update.scalars);
    expect_same_bits(client.read(spec.id()), local.value());
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    expect_same_bits(client.read(slots[i]), local_slots[i].value());
  }
}

TEST(VariableStore, UpdatesOfEveryRuleGiveTheBitsOfALocalVariable) {
  for (const std::string& name : optimizer_names()) {
    expect_updates_as_local(name, false);
    expect_updates_as_local(name, true);
  }
}

TEST(VariableStore, AnswersWithoutAValueThatTheClientHas) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardId id = whole("w", {2}).id();
  client.call({CreateShard{whole("w", {2}), Tensor::zeros({2})}});
  const auto first = client.call({ReadShard{id}})[0];
  EXPECT_FALSE(client.call({ReadShard{id, first.version}})[0].value.has_value());
  client.call({AssignShard{id, AssignOp::kAdd, Tensor::ones({2})}});
  const auto second = client.call({ReadShard{id, first.version}})[0];
  EXPECT_EQ(second.version, first.version + 1);
  expect_tensor(*second.value, {2}, {1, 1});
  expect_tensor(*first.value, {2}, {0, 0});  // what was read never changes
  EXPECT_EQ(store.statistics().num_reads, 3u);
  EXPECT_EQ(store.statistics().num_reads_unchanged, 1u);
}

TEST(VariableStore, ABatchThatComesAgainChangesNothing) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardId id = whole("w", {2}).id();
  client.call({CreateShard{whole("w", {2}), Tensor::zeros({2})}});
  const OperationBatch batch =
      client.batch({AssignShard{id, AssignOp::kAdd, Tensor::ones({2})}, ReadShard{id},
                    ScatterShard{id, ScatterOp::kAdd, rows_of({1}), Tensor::ones({1})}});
  const auto once = store.start(batch)->wait(soon());
  const std::string state = state_of(store);
  for (int i = 0; i < 3; ++i) {
    const auto again = store.start(batch)->wait(soon());
    EXPECT_FALSE(once[0].was_applied_before);
    EXPECT_TRUE(again[0].was_applied_before);
    EXPECT_TRUE(again[2].was_applied_before);
    EXPECT_EQ(again[2].version, once[2].version);
    expect_tensor(*again[1].value, {2}, {1, 2});
    EXPECT_EQ(state_of(store), state);
  }
  // Cut otherwise: what is new is applied.
  client.go_back_to(1);
  const auto longer =
      client.call({ScatterShard{id, ScatterOp::kAdd, rows_of({1}), Tensor::ones({1})},
                   AssignShard{id, AssignOp::kAdd, Tensor::ones({2})}});
  EXPECT_TRUE(longer[0].was_applied_before);
  EXPECT_FALSE(longer[1].was_applied_before);
  expect_tensor(client.read(id), {2}, {2, 3});
  EXPECT_EQ(store.statistics().num_changes, 3u);
  EXPECT_EQ(store.statistics().num_applied_before, 7u);
}

TEST(VariableStore, AClosureThatIsTriedAgainElsewhereCountsOnce) {
  VariableStore store("ps 0");
  const ShardId id = whole("w", {}).id();
  Client first(store, 17, UpdateStream::Kind::kClosure),
      second(store, 17, UpdateStream::Kind::kClosure);
  first.call({CreateShard{whole("w", {}), Tensor(0.0f)}});
  const auto increment = [&] { return AssignShard{id, AssignOp::kAdd, Tensor(1.0f)}; };
  first.call({increment(), increment()});  // then its worker dies
  second.call({increment(), increment(), increment()});
  expect_tensor(first.read(id), {}, {3});
  // A coordinator says that it is finished; the first worker wakes up.
  OperationBatch news;
  news.finished_below = 18;
  store.start(news)->wait(soon());
  EXPECT_ERROR(first.call({increment()}), kAborted, "ps 0: ", "closure 17", "finished");
  expect_tensor(second.read(id), {}, {3});
}

/// Batches with one operation each that cannot be applied; all name the variable or the shard.
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
      {{"no shard of the id 12345"}, AssignShard{12345, AssignOp::kAdd, fits}},
      {{"no shard"}, ReadShard{12345}},
      {{"'w'", "[4, 2]", "[2, 4]"}, AssignShard{w, AssignOp::kAdd, Tensor::ones({2, 4})}},
      {{"'w'", "float64"}, AssignShard{w, AssignOp::kAdd, Tensor::ones({4, 2}, DType::kFloat64)}},
      {{"'w'", "undefined"}, AssignShard{w, AssignOp::kAdd, Tensor()}},
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
      {{"'w'", "sgd has 1 slots, got 0"}, update({}, momentum, fits)},
      {{"'w'", "sgd has 0 slots, got 1"}, update({slot}, plain, fits)},
      {{"'w'", "'other'"}, update({other}, momentum, fits)},
      {{"'w'"}, update({w}, momentum, fits)},
      {{"no shard"}, update({12345}, momentum, fits)},
      {{"no rule 'sdg'"}, update({}, R"({"rule":"sdg"})", fits)},
      {{"'n'", "int32"}, of_integers},
      {{"'other'", "[5, 2]"}, CreateShard{whole("other", {6, 2}), Tensor::ones({6, 2})}},
  };
}

TEST(VariableStore, AnOperationThatFailsLeavesTheWholeBatchUndone) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardId w = whole("w", {4, 2}).id();
  client.call(
      {CreateShard{whole("w", {4, 2}), normal({4, 2})},
       CreateShard{whole("slot", {4, 2}), Tensor::zeros({4, 2})},
       CreateShard{whole("other", {5, 2}), Tensor::zeros({5, 2})},
       CreateShard{whole("n", {3}, DType::kInt32), Tensor::from<std::int32_t>({3}, {1, 2, 3})},
       AssignShard{w, AssignOp::kAdd, Tensor::ones({4, 2})}});
  const std::string state = state_of(store);
  std::uint64_t num_refused = 0;
  for (const auto& [parts, bad] : bad_operations()) {
    SCOPED_TRACE(parts.front());
    const ShardSpec late = whole("late", {2});
    OperationBatch batch =
        client.batch({AssignShard{w, AssignOp::kAdd, Tensor::ones({4, 2})},
                      CreateShard{late, Tensor::zeros({2})},
                      AssignShard{late.id(), AssignOp::kAdd, Tensor::ones({2})}, bad});
    client.go_back_to(1);
    try {
      store.start(batch)->wait(soon());
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("ps 0: operation 3 of 4"), std::string::npos) << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(error.message().find(part), std::string::npos) << part << " in " << error.what();
      }
    }
    EXPECT_EQ(state_of(store), state);
    EXPECT_EQ(store.statistics().num_refused, ++num_refused);
  }
  client.call({AssignShard{w, AssignOp::kAdd, Tensor::ones({4, 2})}});  // it goes on
  EXPECT_NE(state_of(store), state);
}

TEST(VariableStore, RulesWithNormsNeedTheWholeVariable) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardSpec half{"w", DType::kFloat32, {4}, 0, 2, 0, 2},
      slot{"m", DType::kFloat32, {4}, 0, 2, 0, 2};
  client.call({CreateShard{half, Tensor::ones({2})}, CreateShard{slot, Tensor::ones({2})}});
  UpdateShard update{half.id(), {slot.id()}, describe_update_rule(LarsRule())};
  update.gradient = Tensor::ones({2});
  EXPECT_ERROR(client.call({update}), kInvalidArgument, "'w' (shard 0 of 2)", "lars", "norm");
}

/// `count` threads run body(i).
void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::unique_ptr<Thread>> threads;
  for (int i = 0; i < count; ++i) {
    threads.push_back(Executor::system().start("client", [&body, i] { body(i); }));
  }
  for (const auto& thread : threads) thread->join();
}

TEST(VariableStore, TwoClientsWithAThousandIncrementsEachMakeTwoThousand) {
  VariableStore store("ps 0");
  const ShardSpec specs[] = {whole("a", {64}), whole("b", {3, 5}), whole("c", {})};
  run_threads(2, [&](int number) {
    Client client(store, static_cast<std::uint64_t>(number));
    for (const ShardSpec& spec : specs) {
      client.call({CreateShard{spec, Tensor::zeros(spec.whole_shape)}});
    }
    for (int i = 0; i < 1000; ++i) {
      std::vector<Operation> operations;
      for (int k = 0; k < 3; ++k) {  // not in one order
        const ShardSpec& spec = specs[(k + i + number) % 3];
        operations.push_back(
            AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones(spec.whole_shape)});
        if (i % 50 == 0) operations.push_back(ReadShard{spec.id()});
      }
      const OperationBatch batch = client.batch(std::move(operations));
      (void)store.start(batch)->wait(soon());
      if (i % 7 == 0) (void)store.start(batch)->wait(soon());  // the network repeats it
    }
  });
  Client reader(store, 9);
  for (const ShardSpec& spec : specs) {
    expect_same_bits(reader.read(spec.id()), Tensor::full(spec.whole_shape, 2000.0));
  }
  EXPECT_EQ(store.statistics().num_changes, 6000u);
  EXPECT_EQ(store.statistics().num_applied_before, 2u * 143 * 3);
}

using Kind = internal::StoreOrder::Kind;

TEST(VariableStore, FreezesValuesBetweenBatches) {
  VariableStore store("ps 0");
  const ShardSpec a = whole("a", {256}), b = whole("b", {256});
  Client(store, 9).call(
      {CreateShard{a, Tensor::zeros({256})}, CreateShard{b, Tensor::zeros({256})}});
  std::uint64_t num_freezes = 0;
  run_threads(3, [&](int number) {
    Client client(store, static_cast<std::uint64_t>(number + 1));
    for (int i = 0; i < 100; ++i) {
      if (number < 2) {
        client.call({AssignShard{a.id(), AssignOp::kAdd, Tensor::ones({256})},
                     AssignShard{b.id(), AssignOp::kAdd, Tensor::ones({256})}});
        continue;
      }
      (void)obey(store, {.kind = Kind::kFreeze, .finished_below = ++num_freezes});
      const auto read =
          obey(store, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}, ReadShard{b.id()}});
      expect_same_bits(*read[1].value, *read[2].value);
      const auto again = obey(store, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}});
      expect_same_bits(*again[1].value, *read[1].value);
    }
  });
  Client client(store, 8);
  expect_same_bits(client.read(a.id()), Tensor::full({256}, 200.0));
  // One that a broken connection brings again is not obeyed again.
  const auto frozen = [&] {
    return *obey(store, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}})[1].value;
  };
  const Tensor before = frozen();
  client.call({AssignShard{a.id(), AssignOp::kAdd, Tensor::ones({256})}});
  (void)obey(store, {.kind = Kind::kFreeze, .finished_below = num_freezes});
  expect_same_bits(frozen(), before);
  (void)obey(store, {.kind = Kind::kFreeze, .finished_below = ++num_freezes});
  expect_same_bits(frozen(), Tensor::full({256}, 201.0));
  (void)obey(store, {.kind = Kind::kRelease});
  EXPECT_ERROR(obey(store, {.kind = Kind::kReadFrozen}, {ReadShard{a.id()}}), kAborted, "frozen");
}

TEST(VariableStore, ClosedStoreHoldsBatchesUntilItIsOpened) {
  VariableStore store("ps 0", 0, /*is_open=*/false);
  const ShardSpec spec = whole("w", {});
  Client client(store, 1);
  const auto created = client.start({CreateShard{spec, Tensor(1.0f)}});
  const auto read = client.start({ReadShard{spec.id()}});
  EXPECT_FALSE(created->is_ready());
  (void)obey(store, {.kind = Kind::kOpen});
  (void)created->wait(soon());
  expect_same_bits(*read->wait(soon()).front().value, Tensor(1.0f));
}

TEST(VariableStore, RestoreGivesOldAndNewShardsTheirValues) {
  VariableStore store("ps 0");
  const ShardSpec old = whole("old", {2}), made = whole("new", {2});
  Client client(store, 1);
  client.call({CreateShard{old, Tensor::zeros({2})}});
  const auto known = client.call({ReadShard{old.id()}}).front();
  Client before(store, internal::closure_id(1, 3), UpdateStream::Kind::kClosure);
  before.call({AssignShard{old.id(), AssignOp::kAdd, Tensor::ones({2})}});
  (void)obey(store,
             {.kind = Kind::kClose, .generation = 2, .finished_below = internal::closure_id(2, 0)});
  const auto held = before.start({AssignShard{old.id(), AssignOp::kAdd, Tensor::ones({2})}});
  const auto answers =
      obey(store, {.kind = Kind::kRestore, .generation = 2},
           {CreateShard{old, Tensor::full({2}, 7.0)}, CreateShard{made, Tensor::full({2}, 8.0)}});
  EXPECT_EQ(answers.size(), 3u);
  EXPECT_FALSE(held->is_ready());
  (void)obey(store,
             {.kind = Kind::kOpen, .generation = 2, .finished_below = internal::closure_id(2, 3)});
  EXPECT_ERROR(held->wait(soon()), kAborted, "closure 3", "went back to a checkpoint");
  Client after(store, 2);
  const auto read = after.call({ReadShard{old.id(), known.version}, ReadShard{made.id()}});
  expect_same_bits(*read[0].value, Tensor::full({2}, 7.0));  // not taken for the known one
  expect_same_bits(*read[1].value, Tensor::full({2}, 8.0));
  EXPECT_GT(read[0].version, known.version);
  Client again(store, internal::closure_id(2, 3), UpdateStream::Kind::kClosure);
  again.call({AssignShard{old.id(), AssignOp::kAdd, Tensor::ones({2})}});
  expect_same_bits(after.read(old.id()), Tensor::full({2}, 8.0));
}

TEST(VariableStore, RefusesOrdersOfOtherRunsAndGenerations) {
  VariableStore store("ps 0", 0, /*is_open=*/false);
  const auto order = [&](Kind kind, std::uint64_t generation) {
    return obey(store, {.kind = kind, .generation = generation});
  };
  EXPECT_ERROR(order(Kind::kOpen, 4), kAborted, "ps 0", "generation 0", "4", "started again");
  (void)order(Kind::kClose, 4);
  EXPECT_ERROR(order(Kind::kClose, 3), kAborted, "generation 4");
  EXPECT_ERROR(order(Kind::kFreeze, 3), kAborted, "generation 4");
  (void)order(Kind::kOpen, 4);
  (void)order(Kind::kOpen, 4);  // changes nothing
  OperationBatch other;
  other.operations = {internal::StoreOrder{.kind = Kind::kClose, .run = 2, .generation = 9}};
  EXPECT_ERROR(store.start(other)->wait(soon()), kAborted, "chief has exited");
  Client client(store, 1), stray(store, internal::closure_id(4, 0), UpdateStream::Kind::kClosure);
  client.call({CreateShard{whole("v", {}), Tensor(1.0f)}});
  stray.run = 2;
  EXPECT_ERROR(stray.call({AssignShard{whole("v", {}).id(), AssignOp::kAdd, Tensor(1.0f)}}),
               kAborted, "closure 0", "chief has exited");
  EXPECT_ERROR(client.call({internal::ReadStatistics{}, internal::StoreOrder{}}), kInvalidArgument,
               "first of its batch");
  EXPECT_ERROR(obey(store, {.kind = Kind::kRestore, .generation = 4},
                    {CreateShard{whole("w", {2}), ValueGenerator{}}}),
               kInvalidArgument, "");
}

TEST(VariableStore, CountsByHowMuchGradientsCameLate) {
  VariableStore store("ps 0");
  Client client(store, 1);
  const ShardSpec spec = whole("w", {2});
  client.call({CreateShard{spec, Tensor::zeros({2})}});
  UpdateShard update{spec.id(), {}, describe_update_rule(SgdRule())};
  update.scalars.learning_rate = 0.5;
  update.gradient = Tensor::ones({2});
  update.computed_at_version = 1;
  client.call({update, update, update});
  update.computed_at_version = 4;
  client.call({update});
  update.computed_at_version = 0;
  client.call({update});
  const std::map<std::uint64_t, std::uint64_t> expected = {{0, 2}, {1, 1}, {2, 1}};
  EXPECT_EQ(store.statistics().staleness, expected);
}

}  // namespace variable_store
}  // namespace
}  // namespace tutti
