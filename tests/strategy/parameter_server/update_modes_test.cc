// Modes by name, workers that do not wait for one another, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

#include <atomic>

#include "tests/strategy/parameter_server/workers_apart.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::update_mode_tests {
namespace {

using strategy_tests::expect_no_error;
using strategy_tests::num;
using ::testing::ElementsAre;
using workers_apart::Countdown;
using workers_apart::Gathering;
using workers_apart::make_servers;
using workers_apart::options_of;
using workers_apart::run_apart;
using workers_apart::Services;
using workers_apart::statistics_of;
using workers_apart::wait_for;

TEST(UpdateModes, NamesComeBack) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync, UpdateMode::kSyncReplicas}) {
    EXPECT_EQ(parse_update_mode(to_string(mode)), mode);
  }
  EXPECT_TUTTI_ERROR((void)parse_update_mode("ssp"), ErrorCode::kInvalidArgument,
                     "expected sync, async or sync_replicas, got 'ssp'");
}

TEST(UpdateModes, AsynchronousWorkersLoseNoUpdate) {
  const testing::HangWatchdog watchdog("sum of asynchronous updates", std::chrono::seconds(60));
  constexpr int kWorkers = 3, kSteps = 40;
  const Services servers = make_servers(2);
  const auto errors =
      run_apart(kWorkers, servers, options_of(UpdateMode::kAsync), [&](Strategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        for (int i = 0; i < kSteps; ++i) countdown.step(strategy);
      });
  expect_no_error(errors);
  ParameterServerStrategy reader(0, 1, servers, options_of(UpdateMode::kAsync));
  const auto scope = reader.scope();
  const Countdown countdown;
  EXPECT_EQ(countdown.count(), kWorkers * kSteps);
  EXPECT_EQ(countdown.optimizer.iterations().value().item_int(), kWorkers * kSteps);
  const auto told = statistics_of(servers);
  std::uint64_t num_gradients = 0;
  for (const auto& [late, count] : told.staleness) num_gradients += count;
  EXPECT_EQ(num_gradients, static_cast<std::uint64_t>(kWorkers * kSteps));
}

/// What replica_device_setter did: clients that never met agree by the order of creation.
TEST(UpdateModes, WorkersPlaceVariablesAlike) {
  const Services servers = make_servers(3);
  const auto places = [&](int worker, VariablePlacement placement) {
    ParameterServerOptions options = options_of(UpdateMode::kAsync);
    options.placement = placement;
    ParameterServerStrategy strategy(worker, 2, servers, options);
    const auto scope = strategy.scope();
    const bool is_round = placement == VariablePlacement::kRoundRobin;
    std::vector<std::string> devices;
    for (const int rows : {8, 2, 4, 1, 1, 6}) {
      const Tensor first = Tensor::full({rows}, worker + 1.0);
      const Variable variable(first,
                              {.name = concat(is_round ? "round " : "bytes ", devices.size())});
      // The first client's values, for both.
      EXPECT_EQ(variable.value().to_doubles()[0], 1.0);
      devices.push_back(strategy.shards_of(variable).front().device);
    }
    return devices;
  };
  const auto on = [](std::vector<int> tasks) {
    std::vector<std::string> devices;
    for (const int task : tasks) {
      devices.push_back(concat("/job:ps/replica:0/task:", task, "/device:CPU:0"));
    }
    return devices;
  };
  for (const int worker : {0, 1}) {
    EXPECT_EQ(places(worker, VariablePlacement::kRoundRobin), on({0, 1, 2, 0, 1, 2}));
    // By what they have so far: 8 | 2 | 4, then 1 and 1 to the second, 6 as well.
    EXPECT_EQ(places(worker, VariablePlacement::kLeastBytes), on({0, 1, 2, 1, 1, 1}));
  }
}

/// By counts, for times would depend on the machine: whenever the slow worker has read, two others
/// make five steps more before it goes on.
TEST(UpdateModes, SlowAsynchronousWorkerDoesNotSlowOthers) {
  const testing::HangWatchdog watchdog("a slow worker", std::chrono::seconds(60));
  constexpr int kSlowSteps = 4, kRatio = 5;
  const Services servers = make_servers(1);
  Gathering gathering(3);
  std::atomic<int> made[3] = {};
  const auto errors =
      run_apart(3, servers, options_of(UpdateMode::kAsync), [&](ParameterServerStrategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const int worker = strategy.worker();
        const bool is_slow = worker == 2;
        const int steps = is_slow ? kSlowSteps : kSlowSteps * kRatio;
        for (int i = 0; i < steps; ++i) {
          countdown.step(strategy, [&] {
            if (i == 0) gathering.meet();
            if (!is_slow) return;
            for (const int other : {0, 1}) wait_for(made[other], (i + 1) * kRatio);
          });
          ++made[worker];
        }
      });
  expect_no_error(errors);
  // Its first gradient came when the others had made five steps each.
  EXPECT_GE(statistics_of(servers).staleness.rbegin()->first, 2u * kRatio);
}

TEST(UpdateModes, AWorkerApartStopsAlone) {
  const Services servers = make_servers(1);
  ParameterServerStrategy one(0, 2, servers, options_of(UpdateMode::kAsync));
  ParameterServerStrategy other(1, 2, servers, options_of(UpdateMode::kAsync));
  EXPECT_TRUE(one.is_chief());
  EXPECT_FALSE(other.is_chief());
  EXPECT_FALSE(one.stops_after(1));
  one.request_stop("a test");
  EXPECT_TRUE(one.stops_after(2));
  EXPECT_FALSE(one.stops_after(3)) << "asked once";
  EXPECT_FALSE(other.stops_after(2));
}

TEST(UpdateModes, EveryWorkerGetsItsRowsOfAGlobalBatch) {
  const Services servers = make_servers(1);
  std::vector<double> seen;
  for (const int worker : {0, 1}) {
    ParameterServerStrategy strategy(worker, 2, servers, options_of(UpdateMode::kAsync));
    DistributedDataset batches = strategy.distribute_dataset(Dataset::range(6).batch(4));
    for (const PerReplica<Batch>& batch : batches) {
      EXPECT_EQ(batch[0].global_rows(), seen.size() % 3 == 0 ? 4 : 2);
      for (const double each : batch[0][0].to_doubles()) seen.push_back(each);
    }
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 4, 2, 3, 5));
}

TEST(UpdateModes, WhatMakesNoSenseIsRefused) {
  const Services servers = make_servers(1);
  const auto make = [&](const ParameterServerOptions& options, int worker = 0) {
    const ParameterServerStrategy strategy(worker, 2, servers, options);
  };
  EXPECT_TUTTI_ERROR(make(options_of(UpdateMode::kSync)), ErrorCode::kInvalidArgument, "kAsync");
  EXPECT_TUTTI_ERROR(make(options_of(UpdateMode::kAsync), 2), ErrorCode::kInvalidArgument,
                     "no worker 2 of 2");
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 3;
  EXPECT_TUTTI_ERROR(make(options), ErrorCode::kInvalidArgument, "expected 1 .. 2");
  options.replicas_to_aggregate = 1;
  options.total_num_replicas = 3;
  EXPECT_TUTTI_ERROR(make(options), ErrorCode::kInvalidArgument, "total_num_replicas");
  ParameterServerStrategy replicas(options_of(UpdateMode::kSyncReplicas));
  EXPECT_TUTTI_ERROR(ClusterCoordinator{replicas}, ErrorCode::kInvalidArgument,
                     "update_mode is sync_replicas");
}

TEST(UpdateModes, StateOfAStepThatWorkersWouldMixUpIsRefused) {
  ParameterServerStrategy strategy(options_of(UpdateMode::kAsync));
  const auto scope = strategy.scope();
  Variable w(num(1.0), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 2});
  const auto step = [&] {
    strategy.run([&] {
      GradientTape tape;
      optimizer.minimize(tape, w.value() * 2.0f);
    });
  };
  step();  // held by this worker
  EXPECT_TUTTI_ERROR(step(), ErrorCode::kUnimplemented, "gradient accumulation");
  EXPECT_EQ(w.value().item(), 1.0f);
}

}  // namespace
}  // namespace tutti::update_mode_tests
