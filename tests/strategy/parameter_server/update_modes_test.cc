// Workers that train apart on common servers, each a thread with a strategy of its own.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/update_mode.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "tests/strategy/worker_threads.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizer_spec.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::update_mode_tests {
namespace {

using strategy_tests::expect_no_error;
using strategy_tests::num;
using strategy_tests::on_cpus;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using Body = std::function<void(ParameterServerStrategy&)>;
using Services = std::vector<std::shared_ptr<internal::VariableService>>;

Services make_servers(int count) {
  Services servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back(std::make_shared<internal::VariableStore>(concat("ps ", i)));
  }
  return servers;
}

ServerStatistics statistics_of(const Services& servers) {
  ServerStatistics sum;
  for (const auto& each : servers) {
    sum += static_cast<const internal::VariableStore&>(*each).statistics();
  }
  return sum;
}

std::vector<std::string> run_apart(int num_workers, const Services& servers,
                                   const ParameterServerOptions& options, const Body& body) {
  return errors_of_ranks(num_workers, [&](int worker) {
    ParameterServerStrategy strategy(worker, num_workers, servers, options);
    body(strategy);
  });
}

ParameterServerOptions options_of(UpdateMode mode, int replicas = 1) {
  ParameterServerOptions options;
  options.local = on_cpus(1, replicas);
  options.update_mode = mode;
  return options;
}

/// Ends when `count` workers have come: inside a step, they have all joined.
class Gathering {
 public:
  explicit Gathering(int count) : missing_(count) {}
  void meet() {
    if (--missing_ == 0) all_here_.set();
    (void)all_here_.wait_until(TimePoint::max());
  }

 private:
  std::atomic<int> missing_;
  Event all_here_;
};

/// A variable that every step of every worker lowers by 1.
struct Countdown {
  Countdown() : optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0}) {}
  /// `between`: after the read and before the update. Returns what was read, as a count.
  int step(
      Strategy& strategy, const std::function<void()>& between = [] {}) {
    double read = 0.0;
    strategy.run([&] {
      GradientTape tape;
      (void)optimizer.learning_rate();  // all that a step reads is read here
      const Tensor value = w.value();
      read = -value.item();
      between();
      optimizer.minimize(tape, value * 1.0f);
    });
    return static_cast<int>(read);
  }
  int count() const { return static_cast<int>(-w.value().item()); }
  Variable w{num(0.0), {.name = "w"}};
  Sgd optimizer;
};

void wait_for(const std::atomic<int>& counter, int at_least) {
  while (counter.load() < at_least) Clock::system().sleep_for(std::chrono::microseconds(200));
}

TEST(UpdateModes, NamesComeBack) {
  for (const UpdateMode mode :
       {UpdateMode::kSync, UpdateMode::kAsync, UpdateMode::kStaleSync, UpdateMode::kSyncReplicas}) {
    EXPECT_EQ(parse_update_mode(to_string(mode)), mode);
  }
  EXPECT_TUTTI_ERROR((void)parse_update_mode("stale"), ErrorCode::kInvalidArgument,
                     "ssp or sync_replicas, got 'stale'");
}

TEST(UpdateModes, S3_23_AsynchronousWorkersLoseNoUpdate) {
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
TEST(UpdateModes, S3_22_AClientPerWorkerPlacesVariablesAlike) {
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
TEST(UpdateModes, S2_03_ASlowAsynchronousWorkerSlowsNobody) {
  const testing::HangWatchdog watchdog("a slow worker", std::chrono::seconds(60));
  constexpr int kSlowSteps = 4, kRatio = 5;
  const Services servers = make_servers(1);
  Gathering gathering(3);
  std::atomic<int> made[3] = {};
  std::map<int, std::uint64_t> clocks;
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
        if (!is_slow) return wait_for(made[2], kSlowSteps + 1);  // nobody leaves before
        clocks = strategy.server_statistics().front().clocks;
        ++made[2];
      });
  expect_no_error(errors);
  constexpr std::uint64_t kFast = kSlowSteps * kRatio, kSlow = kSlowSteps;
  EXPECT_THAT(clocks, ElementsAre(Pair(0, kFast), Pair(1, kFast), Pair(2, kSlow)));
  // Its first gradient came when the others had made five steps each.
  EXPECT_GE(statistics_of(servers).staleness.rbegin()->first, 2u * kRatio);
}

/// Whoever reads at clock c sees all steps of all workers before c - s, and none after c + s.
void expect_bounded(int staleness, int num_workers) {
  const testing::HangWatchdog watchdog(concat("staleness ", staleness), std::chrono::seconds(60));
  constexpr int kSteps = 30;
  const Services servers = make_servers(2);
  ParameterServerOptions options = options_of(UpdateMode::kStaleSync);
  options.staleness = staleness;
  Gathering gathering(num_workers);
  const auto errors =
      run_apart(num_workers, servers, options, [&](ParameterServerStrategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const RandomStream random(
            RandomKey{1, kUserPurpose, static_cast<std::uint64_t>(strategy.worker())});
        for (int clock = 0; clock < kSteps; ++clock) {
          const int seen = countdown.step(strategy, [&] {
            if (clock == 0) return gathering.meet();
            const auto pause = random.below(static_cast<std::uint64_t>(clock), 400);
            Clock::system().sleep_for(std::chrono::microseconds(pause));
          });
          const int others = num_workers - 1;
          EXPECT_GE(seen, clock + others * std::max(0, clock - staleness)) << "clock " << clock;
          EXPECT_LE(seen, clock + others * (clock + staleness + 1)) << "clock " << clock;
        }
      });
  expect_no_error(errors);
  const auto told = statistics_of(servers);
  ASSERT_FALSE(told.lead.empty());
  EXPECT_LE(told.lead.rbegin()->first, static_cast<std::uint64_t>(staleness));
  EXPECT_TRUE(told.clocks.empty()) << "who ends, leaves";
}

TEST(UpdateModes, StaleSynchronousReadsAreWithinTheBound) {
  for (const int staleness : {0, 1, 3}) expect_bounded(staleness, 3);
}

TEST(UpdateModes, AWorkerThatEndsIsNotWaitedFor) {
  const testing::HangWatchdog watchdog("a worker ends");
  const Services servers = make_servers(2);
  ParameterServerOptions options = options_of(UpdateMode::kStaleSync);
  options.staleness = 1;
  Gathering gathering(2);
  const auto errors = run_apart(2, servers, options, [&](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Countdown countdown;
    const int steps = strategy.worker() == 0 ? 3 : 20;
    for (int i = 0; i < steps; ++i) {
      countdown.step(strategy, [&] {
        if (i == 0) gathering.meet();
      });
    }
  });
  expect_no_error(errors);
}

TEST(UpdateModes, AReadThatWaitsTooLongNamesTheWorker) {
  const testing::HangWatchdog watchdog("a stalled worker", std::chrono::seconds(30));
  for (const UpdateMode mode : {UpdateMode::kStaleSync, UpdateMode::kSyncReplicas}) {
    ParameterServerOptions options = options_of(mode);
    options.staleness = 0;
    options.timeout = options.local.timeout = std::chrono::milliseconds(400);
    Gathering gathering(2);
    Event is_told;
    const auto errors =
        run_apart(2, make_servers(1), options, [&](ParameterServerStrategy& strategy) {
          const auto scope = strategy.scope();
          Countdown countdown;
          const bool is_slow = strategy.worker() == 1;
          countdown.step(strategy, [&] {
            gathering.meet();
            if (is_slow) (void)is_told.wait_until(TimePoint::max());
          });
          if (is_slow) return;
          struct Tell {
            Event& event;
            ~Tell() { event.set(); }
          } const tell{is_told};
          countdown.step(strategy);
        });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("worker 0 has ended 1 steps"),
                                 HasSubstr("for worker 1, which has ended 0")))
        << to_string(mode);
    EXPECT_EQ(errors[1], "");
  }
}

struct Bits {
  std::string weights, slots;
};

/// Dense and sparse gradients, dropout, Adam; a global batch of 12 rows over all replicas.
Bits train_bits(Strategy& strategy, int steps = 4) {
  set_random_seed(7);
  Json state = strategy.save_state();
  state.set("step", 0).set("seed", "7");
  strategy.restore_state(state);
  const auto scope = strategy.scope();
  const auto weight = [](const char* name, const Shape& shape, std::uint64_t number) {
    const Tensor initial = random_normal(shape, RandomKey{7, kInitializerPurpose, number, 0, 0});
    return Variable(initial, {.name = name});
  };
  const std::vector<Variable> weights = {weight("table", {10, 6}, 1), weight("w1", {6, 33}, 2),
                                         weight("b1", {33}, 3), weight("w2", {33, 1}, 4)};
  Adam optimizer(weights, {.learning_rate = 0.05});
  for (int step = 0; step < steps; ++step) {
    strategy.run([&, step] {
      const ReplicaContext& context = ReplicaContext::current();
      const std::int64_t rows = 12 / context.num_replicas_in_sync();
      std::vector<std::int64_t> words;
      for (std::int64_t i = 0; i < rows; ++i) {
        words.push_back((step + context.replica_id() * rows + i) * 7 % 10);
      }
      GradientTape tape;
      const Tensor x = embedding_lookup(weights[0], Tensor::from<std::int64_t>({rows}, words));
      const Tensor hidden = relu(matmul(x, weights[1].value()) + weights[2].value());
      const RandomContext& random = current_random_context();
      const Tensor dropped = dropout(
          hidden, 0.25, RandomKey{random.seed, kDropoutPurpose, random.step, random.replica, 0});
      optimizer.minimize(tape,
                         reduce_sum(square(matmul(dropped, weights[3].value()) - 1.0f)) / 12.0f);
    });
  }
  std::string weights_hash = hash_variables(weights);
  return {std::move(weights_hash), hash_variables(optimizer.state_variables())};
}

void expect_bits_of_mirrored(int num_workers, int replicas, int num_servers, int num_shards) {
  const std::string what = concat(num_workers, " workers of ", replicas, " replicas");
  const testing::HangWatchdog watchdog(what, std::chrono::seconds(60));
  const Bits expected = train_bits(*strategy_tests::mirrored(1, num_workers * replicas));
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas, replicas);
  options.variable_partitioner = FixedShardsPartitioner(num_shards);
  std::vector<Bits> trained(static_cast<std::size_t>(num_workers));
  const Services servers = make_servers(num_servers);
  expect_no_error(run_apart(num_workers, servers, options, [&](ParameterServerStrategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), num_workers * replicas);
    trained[static_cast<std::size_t>(strategy.worker())] = train_bits(strategy);
  }));
  for (const Bits& each : trained) {
    EXPECT_EQ(each.weights, expected.weights) << what;
    EXPECT_EQ(each.slots, expected.slots) << what;
  }
  EXPECT_EQ(statistics_of(servers).num_stale_dropped, 0u);
}

TEST(UpdateModes, S3_24_S3_25_SyncReplicasOfAllWorkersHasTheBitsOfMirroredStrategy) {
  expect_bits_of_mirrored(1, 1, 1, 1);
  expect_bits_of_mirrored(2, 1, 1, 1);
  expect_bits_of_mirrored(3, 1, 2, 2);
  expect_bits_of_mirrored(2, 2, 2, 1);
}

TEST(UpdateModes, AWorkerAloneHasTheBitsOfOneDeviceInEveryMode) {
  const testing::HangWatchdog watchdog("modes in one process");
  const Bits expected = train_bits(*strategy_tests::mirrored(1));
  for (const UpdateMode mode :
       {UpdateMode::kAsync, UpdateMode::kStaleSync, UpdateMode::kSyncReplicas}) {
    ParameterServerStrategy strategy(options_of(mode));
    EXPECT_EQ(strategy.update_mode(), mode);
    const Bits bits = train_bits(strategy);
    EXPECT_EQ(bits.weights, expected.weights) << to_string(mode);
    EXPECT_EQ(bits.slots, expected.slots) << to_string(mode);
  }
}

/// Two of three make a step; the third has read before three steps were made, and is late for all.
TEST(UpdateModes, S3_25_GradientsOfALateBackupWorkerAreDroppedAndCounted) {
  const testing::HangWatchdog watchdog("backup workers", std::chrono::seconds(30));
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 2;
  options.total_num_replicas = 3;
  const Services servers = make_servers(2);
  Gathering gathering(3);
  std::atomic<int> made[3] = {};
  const auto errors = run_apart(3, servers, options, [&](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Countdown countdown;
    const int worker = strategy.worker();
    if (worker < 2) {
      for (int i = 0; i < 3; ++i) {
        countdown.step(strategy, [&] {
          if (i == 0) gathering.meet();
        });
        ++made[worker];
      }
    } else {
      countdown.step(strategy, [&] {
        gathering.meet();
        wait_for(made[0], 3), wait_for(made[1], 3);
      });
      // Its next one counts again: with worker 0's it makes the fourth step.
      EXPECT_EQ(countdown.step(strategy), 9);
      ++made[worker];
    }
    if (worker != 0) return;
    countdown.step(strategy);
    EXPECT_EQ(countdown.optimizer.iterations().value().item_int(), 4);
    // Each step is the mean of two, for three: -1 * 2 / (2/3).
    EXPECT_EQ(countdown.count(), 12);
  });
  expect_no_error(errors);
  const auto told = statistics_of(servers);
  EXPECT_EQ(told.num_stale_dropped, 2u);  // of w and of the iterations
  EXPECT_EQ(told.num_sync_steps, 8u);     // four of each
}

/// Two of three make a step. Each counts its own steps; when two have ended, the third has a step
/// left that nobody else gives for: tf's token queue says OutOfRange then.
TEST(UpdateModes, S3_25_AReadOfAStepThatNobodyIsLeftForFailsAtOnce) {
  const testing::HangWatchdog watchdog("the last worker", std::chrono::seconds(30));
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 2;
  const Services servers = make_servers(2);
  Gathering gathering(3);
  std::atomic<int> num_ended = 0;
  const auto begin = Clock::system().now();
  const auto errors = errors_of_ranks(3, [&](int worker) {
    {
      ParameterServerStrategy strategy(worker, 3, servers, options);
      const auto scope = strategy.scope();
      Countdown countdown;
      for (int i = 0; i < 4; ++i) {
        countdown.step(strategy, [&] {
          if (i == 0) gathering.meet();
          if (i == 0 && worker == 2) wait_for(num_ended, 2);
        });
      }
    }
    ++num_ended;
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  // Worker 2's first gradient came late; its second one is of step 4, alone.
  EXPECT_THAT(errors[2], AllOf(HasSubstr("step 4 will not be made: workers 0, 1 have ended"),
                               HasSubstr("expected gradients of 2 of 3 workers, got 1 at most")));
  EXPECT_EQ(statistics_of(servers).num_sync_steps, 8u);  // four of w and of the iterations
  EXPECT_LT(seconds_between(begin, Clock::system().now()), 20.0) << "patience is ten minutes";
}

/// The same for one that waits already when the other ends.
TEST(UpdateModes, S3_25_AReadThatWaitsFailsWhenTooFewAreLeft) {
  const testing::HangWatchdog watchdog("a waiting worker", std::chrono::seconds(30));
  const Services servers = make_servers(1);
  Gathering gathering(2);
  Event gave;
  const auto errors =
      run_apart(2, servers, options_of(UpdateMode::kSyncReplicas), [&](Strategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const bool ends = strategy.worker() == 1;
        countdown.step(strategy, [&] { gathering.meet(); });
        if (ends) return (void)gave.wait_until(TimePoint::max());
        countdown.step(strategy, [&] { gave.set(); });
        countdown.step(strategy);
      });
  EXPECT_THAT(errors[0], HasSubstr("step 1 will not be made: worker 1 has ended"));
  EXPECT_EQ(errors[1], "");
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
  ParameterServerOptions options = options_of(UpdateMode::kStaleSync);
  options.staleness = -1;
  EXPECT_TUTTI_ERROR(make(options), ErrorCode::kInvalidArgument, "staleness; expected 0 or more");
  options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 3;
  EXPECT_TUTTI_ERROR(make(options), ErrorCode::kInvalidArgument, "expected 1 .. 2");
  options.replicas_to_aggregate = 1;
  options.total_num_replicas = 3;
  EXPECT_TUTTI_ERROR(make(options), ErrorCode::kInvalidArgument, "total_num_replicas");
  ParameterServerStrategy stale(options_of(UpdateMode::kStaleSync));
  EXPECT_TUTTI_ERROR(ClusterCoordinator{stale}, ErrorCode::kInvalidArgument, "update_mode is ssp");
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
