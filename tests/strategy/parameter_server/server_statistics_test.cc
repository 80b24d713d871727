// Statistics of servers: staleness of gradients, reads, and transfer over a connection.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"

#include <gmock/gmock.h>

#include "tests/strategy/parameter_server/packet_helpers.h"
#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti {
namespace {
namespace server_statistics_tests {

using namespace store_tests;
using internal::ReadStatistics;
using ::testing::ElementsAre;
using ::testing::Pair;

ServerStatistics statistics_of_everything() {
  ServerStatistics all;
  all.num_shards = 1, all.num_batches = 2, all.num_refused = 3, all.num_changes = 4;
  all.num_applied_before = 5, all.num_reads = 6, all.num_reads_unchanged = 7;
  all.num_sync_steps = 8, all.num_stale_dropped = 9, all.num_rank_duplicates = 10;
  all.staleness = {{0, 11}, {3, 12}};
  all.awaited = {{0, 14}, {2, 15}};
  return all;
}

TEST(ServerStatisticsTest, TravelsAsIntegers) {
  const ServerStatistics all = statistics_of_everything();
  EXPECT_EQ(ServerStatistics::from_tensor(all.to_tensor()), all);
  EXPECT_EQ(ServerStatistics::from_tensor(ServerStatistics().to_tensor()), ServerStatistics());
}

TEST(ServerStatisticsTest, WhatAServerDoesNotTellIsRefused) {
  const Tensor whole = statistics_of_everything().to_tensor();
  const auto numbers = whole.host_span<std::int64_t>();
  const auto expect_refused = [](const Tensor& tensor) {
    EXPECT_ERROR((void)ServerStatistics::from_tensor(tensor), kDataLoss, "ServerStatistics");
  };
  for (std::size_t length = 0; length < numbers.size(); ++length) {
    expect_refused(
        rows_of({numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(length)}));
  }
  std::vector<std::int64_t> changed(numbers.begin(), numbers.end());
  changed.push_back(1);
  expect_refused(rows_of(changed));
  changed = {numbers.begin(), numbers.end()};
  changed[10] = std::int64_t{1} << 62;  // entries of a histogram
  expect_refused(rows_of(changed));
  changed[10] = -1;
  expect_refused(rows_of(changed));
  expect_refused(Tensor());
  expect_refused(Tensor::zeros({4}));
}

TEST(ServerStatisticsTest, AddsUp) {
  ServerStatistics sum = statistics_of_everything();
  ServerStatistics other;
  other.num_reads = 100;
  other.staleness = {{3, 1}, {7, 1}};
  other.awaited = {{0, 12}, {4, 1}};
  sum += other;
  EXPECT_EQ(sum.num_reads, 106u);
  EXPECT_EQ(sum.num_rank_duplicates, 10u);
  EXPECT_THAT(sum.staleness, ElementsAre(Pair(0, 11), Pair(3, 13), Pair(7, 1)));
  EXPECT_THAT(sum.awaited, ElementsAre(Pair(0, 26), Pair(2, 15), Pair(4, 1)));
  EXPECT_EQ(to_string(sum.staleness), "0: 11, 3: 13, 7: 1");
  EXPECT_EQ(to_string(ServerStatistics::Histogram{}), "none");
  EXPECT_EQ(to_string(ServerStatistics::Histogram{{1000, 2}}), "1000+: 2");
}

TEST(ServerStatisticsTest, AGradientIsLateByTheChangesSinceItsRead) {
  VariableStore store("ps 0", 3);  // a restarted server begins with other versions
  Client client(store, 1);
  UpdateShard update =
      descent(client.create(whole("w", {2}), Tensor::zeros({2})), Tensor::ones({2}));
  update.computed_at_version = client.call({ReadShard{update.shard}}).front().version;
  client.call({update, update, update});
  update.computed_at_version = 0;  // unknown
  client.call({update});
  update.computed_at_version = 4;  // the fourth change, in the previous process
  client.call({update});
  const auto answers = client.call({ReadStatistics{}});
  const auto told = ServerStatistics::from_tensor(*answers.front().value);
  EXPECT_THAT(told.staleness, ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 1)));
  EXPECT_EQ(told, [&] {
    ServerStatistics expected = store.statistics();
    expected.num_batches -= 1;  // the batch of the query
    return expected;
  }());
}

/// One replica; a step reads, calls other changes of the variable, and updates.
TEST(ServerStatisticsTest, AStrategysGradientsSayWhatTheyWereComputedFrom) {
  const testing::HangWatchdog watchdog("staleness of a strategy");
  ParameterServerOptions options{.local = strategy_tests::on_cpus(1),
                                 .variable_partitioner = FixedShardsPartitioner(2),
                                 .num_servers = 2};
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  Variable dense(Tensor::zeros({4}), {.name = "dense"});
  Variable table(Tensor::zeros({4, 2}), {.name = "table"});
  Sgd optimizer(std::vector<Variable>{dense, table}, {.learning_rate = 0.1});
  const auto step = [&](int num_changes_between) {
    strategy.run([&] {
      GradientTape tape;
      const Tensor rows = embedding_lookup(table, Tensor::from<std::int64_t>({2}, {0, 3}));
      const Tensor loss = reduce_sum(dense.value()) + reduce_sum(rows);
      for (int i = 0; i < num_changes_between; ++i) dense.assign_add(Tensor::ones({4}));
      optimizer.minimize(tape, loss);
    });
  };
  for (int i = 0; i < 5; ++i) step(0);
  step(2);
  ServerStatistics sum;
  for (const ServerStatistics& each : strategy.server_statistics()) sum += each;
  // Two variables in two shards each; in the last step `dense` had changed twice.
  EXPECT_THAT(sum.staleness, ElementsAre(Pair(0, 22), Pair(2, 2)));
}

/// Closures in one process share values; the staleness of each gradient counts from its own read.
TEST(ServerStatisticsTest, ClosuresCountFromTheirOwnReads) {
  const testing::HangWatchdog watchdog("staleness of closures");
  ParameterServerStrategy strategy({.local = strategy_tests::on_cpus(1), .num_workers = 2});
  const auto scope = strategy.scope();
  Variable w(Tensor(0.0f), {.name = "w"});
  ClusterCoordinator coordinator(strategy, {.window = 1});
  Event slow_has_read, fast_is_done;
  const auto update = [&](const Tensor& value) {
    w.storage().update(SgdRule(), {}, Gradient(value * 0.0f + 1.0f), {.learning_rate = 0.1});
  };
  coordinator.define("slow", [&] {
    const Tensor value = w.value();
    slow_has_read.set();
    (void)fast_is_done.wait_until(TimePoint::max());
    update(value);
  });
  coordinator.define("fast", [&] {
    (void)slow_has_read.wait_until(TimePoint::max());
    for (int i = 0; i < 3; ++i) update(w.value());
    (void)w.value();
    fast_is_done.set();
  });
  coordinator.start();
  coordinator.schedule("slow");
  coordinator.schedule("fast");
  coordinator.join();
  const ServerStatistics told = strategy.server_statistics().front();
  EXPECT_THAT(told.staleness, ElementsAre(Pair(0, 3), Pair(3, 1)));
}

}  // namespace server_statistics_tests
}  // namespace
}  // namespace tutti
