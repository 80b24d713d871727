// Tests workers that share servers, in every update mode: results (bit-identical to
// MirroredStrategy's), lost and late workers, and placement of variables. Each worker is a thread
// with its own strategy.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

#include <atomic>
#include <numeric>

#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::update_mode_tests {
namespace {

using internal::StoreCounts;
using strategy_tests::expect_no_error;
using strategy_tests::num;
using strategy_tests::numbers;
using strategy_tests::on_cpus;
using strategy_tests::replica_number;
using strategy_tests::Trained;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Body = std::function<void(ParameterServerStrategy&)>;
using Services = std::vector<std::shared_ptr<internal::VariableService>>;

/// Fixture that ends a test if its threads deadlock.
class UpdateModes : public ::testing::Test {
  const testing::HangWatchdog watchdog_{"workers that share servers"};
};
using ParameterServerWorkers = UpdateModes;

Services make_servers(int count) {
  Services servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back(std::make_shared<internal::VariableStore>(concat("ps ", i)));
  }
  return servers;
}

/// Returns the sum of a counter across all servers.
std::uint64_t total_of(std::uint64_t internal::StoreCounts::*counter, const Services& servers) {
  std::uint64_t total = 0;
  for (const auto& each : servers) {
    total += static_cast<const internal::VariableStore&>(*each).counts().*counter;
  }
  return total;
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

/// Runs workers in mode kSync, in which all workers execute each step together; worker w has
/// replicas[w] replicas. Returns the workers' errors.
std::vector<std::string> run_in_step(const std::vector<int>& replicas, int num_servers,
                                     const Body& body, std::int64_t num_shards = 1) {
  const auto workers = static_cast<int>(replicas.size());
  const Services servers = make_servers(num_servers);
  auto communicators =
      strategy_tests::communicators_of(workers, strategy_tests::Between::kMessages, {});
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    ParameterServerOptions options;
    options.local = on_cpus(replicas[w]);
    options.variable_partitioner = FixedShardsPartitioner(num_shards);
    ParameterServerStrategy strategy(std::move(communicators[w]), servers, options);
    body(strategy);
  });
}

/// Barrier for `count` workers. Passing it inside a step proves that all workers have joined.
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

/// Variable that every step of every worker decreases by 1.
struct Countdown {
  Countdown() : optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0}) {}
  /// Runs one step. Returns the number of earlier decreases, which is the negated value of w that
  /// the step read. Calls `between` after the read and before the update.
  int step(
      Strategy& strategy, const std::function<void()>& between = [] {}) {
    double read = 0.0;
    strategy.run([&] {
      GradientTape tape;
      // The first read of a step fetches all of the step's variables.
      (void)optimizer.learning_rate();
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

TEST_F(UpdateModes, NamesRoundTrip) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync, UpdateMode::kSyncReplicas}) {
    EXPECT_EQ(parse_update_mode(to_string(mode)), mode);
  }
  EXPECT_ERROR((void)parse_update_mode("ssp"), kInvalidArgument,
               "expected sync, async or sync_replicas, got 'ssp'");
}

TEST_F(UpdateModes, AsynchronousWorkersDoNotLoseUpdates) {
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
}

/// Clients that never communicate agree on the placement, because they create the variables in the
/// same order, as with replica_device_setter.
TEST_F(UpdateModes, ConcurrentWorkersAgreeOnVariablePlacement) {
  const auto expect_places = [](int num_servers, VariablePlacement placement,
                                const std::vector<std::pair<std::int64_t, int>>& rows_and_task) {
    ParameterServerOptions options = options_of(UpdateMode::kAsync);
    options.placement = placement;
    std::vector<double> values[2];
    const Body body = [&](ParameterServerStrategy& strategy) {
      const auto scope = strategy.scope();
      for (const auto& [rows, task] : rows_and_task) {
        std::vector<double>& own = values[strategy.worker()];
        const Variable variable(Tensor::full({rows}, strategy.worker() + 1.0),
                                {.name = concat("v", own.size())});
        EXPECT_EQ(strategy.shards_of(variable).front().device,
                  concat("/job:ps/replica:0/task:", task, "/device:CPU:0"));
        own.push_back(variable.value().to_doubles()[0]);
      }
    };
    expect_no_error(run_apart(2, make_servers(num_servers), options, body));
    EXPECT_EQ(values[0], values[1]) << "expected the first client's initial values";
  };
  using enum VariablePlacement;
  expect_places(3, kRoundRobin, {{8, 0}, {2, 1}, {4, 2}, {1, 0}, {1, 1}, {6, 2}});
  // After three variables, the servers hold 8, 2 and 4 rows. The second server then gets the
  // remaining three variables.
  expect_places(3, kLeastBytes, {{8, 0}, {2, 1}, {4, 2}, {1, 1}, {1, 1}, {6, 1}});
  expect_places(2, kRoundRobin, {{1000, 0}, {10, 1}, {20, 0}, {30, 1}, {40, 0}});
  expect_places(2, kLeastBytes, {{1000, 0}, {10, 1}, {20, 1}, {30, 1}, {40, 1}});
}

/// Counts steps instead of measuring time: between the slow worker's read and its update, two other
/// workers each run five steps.
TEST_F(UpdateModes, SlowAsynchronousWorkerDoesNotDelayFastWorkers) {
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
}

TEST_F(UpdateModes, StopRequestAffectsOnlyRequestingWorker) {
  const Services servers = make_servers(1);
  ParameterServerStrategy one(0, 2, servers, options_of(UpdateMode::kAsync));
  ParameterServerStrategy other(1, 2, servers, options_of(UpdateMode::kAsync));
  EXPECT_TRUE(one.is_chief());
  EXPECT_FALSE(other.is_chief());
  EXPECT_FALSE(one.stops_after(1));
  one.request_stop("a test");
  EXPECT_TRUE(one.stops_after(2));
  EXPECT_FALSE(one.stops_after(3)) << "one request stops the worker once";
  EXPECT_FALSE(other.stops_after(2));
}

TEST_F(UpdateModes, EachWorkerGetsItsShareOfGlobalBatch) {
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

TEST_F(UpdateModes, InvalidOptionsAreRejected) {
  const Services servers = make_servers(1);
  const auto make = [&](const ParameterServerOptions& options, int worker = 0) {
    const ParameterServerStrategy strategy(worker, 2, servers, options);
  };
  EXPECT_ERROR(make(options_of(UpdateMode::kSync)), kInvalidArgument, "kAsync");
  EXPECT_ERROR(make(options_of(UpdateMode::kAsync), 2), kInvalidArgument,
               "a worker index below 2 (the number of workers), got 2");
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 3;
  EXPECT_ERROR(make(options), kInvalidArgument, "expected 1 .. 2");
  options.replicas_to_aggregate = 1;
  options.total_num_replicas = 3;
  EXPECT_ERROR(make(options), kInvalidArgument, "total_num_replicas");
  ParameterServerStrategy replicas(options_of(UpdateMode::kSyncReplicas));
  EXPECT_ERROR(ClusterCoordinator{replicas}, kInvalidArgument, "update_mode is sync_replicas");
}

TEST_F(UpdateModes, AsynchronousGradientAccumulationIsUnimplemented) {
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
  step();  // the worker accumulates this gradient and sends nothing
  EXPECT_ERROR(step(), kUnimplemented, "gradient accumulation");
  EXPECT_EQ(w.value().item(), 1.0f);
}

/// Trains with dense and sparse gradients, dropout and Adam on global batches of 12 rows.
Trained train_bits(Strategy& strategy, int steps = 4) {
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
  return {hash_variables(weights), hash_variables(optimizer.state_variables()), ""};
}

void expect_bits_of_mirrored(int num_workers, int replicas, int num_servers, int num_shards) {
  const std::string what = concat(num_workers, " workers of ", replicas, " replicas");
  const Trained expected = train_bits(*strategy_tests::mirrored(1, num_workers * replicas));
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas, replicas);
  options.variable_partitioner = FixedShardsPartitioner(num_shards);
  std::vector<Trained> trained(static_cast<std::size_t>(num_workers));
  const Services servers = make_servers(num_servers);
  expect_no_error(run_apart(num_workers, servers, options, [&](ParameterServerStrategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), num_workers * replicas);
    trained[static_cast<std::size_t>(strategy.worker())] = train_bits(strategy);
  }));
  EXPECT_THAT(trained, Each(expected)) << what;
  EXPECT_EQ(total_of(&StoreCounts::num_stale_dropped, servers), 0u);
}

TEST_F(UpdateModes, SyncReplicasMatchesMirroredBitForBit) {
  expect_bits_of_mirrored(1, 1, 1, 1);
  expect_bits_of_mirrored(2, 1, 1, 1);
  expect_bits_of_mirrored(3, 1, 2, 2);
  expect_bits_of_mirrored(2, 2, 2, 1);
}

TEST_F(UpdateModes, SingleWorkerMatchesOneDeviceInEveryMode) {
  const Trained expected = train_bits(*strategy_tests::mirrored(1));
  for (const UpdateMode mode : {UpdateMode::kAsync, UpdateMode::kSyncReplicas}) {
    ParameterServerStrategy strategy(options_of(mode));
    EXPECT_EQ(strategy.update_mode(), mode);
    EXPECT_EQ(train_bits(strategy), expected) << to_string(mode);
  }
}

/// A step needs the gradients of two workers. After the third worker has read its variables, the
/// other two complete three steps, so the third worker's gradient is stale.
TEST_F(UpdateModes, LateBackupGradientsAreDroppedAndCounted) {
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
      // This worker's next gradient is on time: together with worker 0's, it completes the fourth
      // step.
      EXPECT_EQ(countdown.step(strategy), 9);
      ++made[worker];
    }
    if (worker != 0) return;
    countdown.step(strategy);
    EXPECT_EQ(countdown.optimizer.iterations().value().item_int(), 4);
    // Each of the four steps applies two gradients of 1, scaled to three workers: 4 * 2 * 3 / 2.
    EXPECT_EQ(countdown.count(), 12);
  });
  expect_no_error(errors);
  // One late gradient of `w` and one late change of `iterations` were dropped; each of the two
  // variables completed four steps.
  EXPECT_EQ(total_of(&StoreCounts::num_stale_dropped, servers), 2u);
  EXPECT_EQ(total_of(&StoreCounts::num_sync_steps, servers), 8u);
}

/// A step needs the gradients of two workers, and each worker runs four steps. When two workers
/// have ended, the third one has a step left that no other worker joins. tf's token queue then
/// returns OutOfRange.
TEST_F(UpdateModes, ReadOfUnreachableStepFailsImmediately) {
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 2;
  const Services servers = make_servers(2);
  Gathering gathering(3);
  std::atomic<int> num_ended = 0;
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
  // Worker 2's first gradient was late; its second gradient is the only gradient of step 4.
  EXPECT_THAT(
      errors[2],
      AllOf(HasSubstr("step 4 cannot complete: workers 0, 1 have ended"),
            HasSubstr("expected gradients from 2 of 3 workers, but at most 1 can send one")));
  // `w` and `iterations` each completed four steps.
  EXPECT_EQ(total_of(&StoreCounts::num_sync_steps, servers), 8u);
}

/// Like ReadOfUnreachableStepFailsImmediately, but the read is already waiting when the other
/// worker ends.
TEST_F(UpdateModes, PendingReadFailsWhenTooFewWorkersRemain) {
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
  EXPECT_THAT(errors[0], HasSubstr("step 1 cannot complete: worker 1 has ended"));
  EXPECT_EQ(errors[1], "");
}

TEST_F(UpdateModes, ReadTimeoutNamesMissingWorker) {
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.timeout = options.local.timeout = std::chrono::seconds(2);
  Gathering gathering(2);
  Event has_failed;
  const auto errors =
      run_apart(2, make_servers(1), options, [&](ParameterServerStrategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const bool is_slow = strategy.worker() == 1;
        countdown.step(strategy, [&] {
          gathering.meet();
          if (is_slow) (void)has_failed.wait_until(TimePoint::max());
        });
        if (is_slow) return;
        struct SetOnExit {
          Event& event;
          ~SetOnExit() { event.set(); }
        } const set_on_exit{has_failed};
        countdown.step(strategy);
      });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("worker 0 is waiting to read the next step"),
                               HasSubstr("for which worker 1 sent no gradient"),
                               HasSubstr("gradients from 2 of 2 workers")));
  EXPECT_EQ(errors[1], "");
}

void expect_bits_of_mirrored_in_step(const std::vector<int>& replicas, int num_servers,
                                     std::int64_t num_shards) {
  const std::string what = concat("replicas ", join(replicas), ", ", num_servers, " servers");
  const int total = std::accumulate(replicas.begin(), replicas.end(), 0);
  const Trained expected = strategy_tests::train(*strategy_tests::mirrored(1, total));
  std::vector<Trained> trained(replicas.size());
  const Body body = [&](ParameterServerStrategy& strategy) {
    trained[static_cast<std::size_t>(strategy.worker())] = strategy_tests::train(strategy);
  };
  expect_no_error(run_in_step(replicas, num_servers, body, num_shards));
  EXPECT_THAT(trained, Each(expected)) << what;
}

TEST_F(ParameterServerWorkers, TrainingMatchesMirroredBitForBit) {
  expect_bits_of_mirrored_in_step({1, 1}, 1, 1);
  expect_bits_of_mirrored_in_step({1, 1, 1}, 2, 3);
  expect_bits_of_mirrored_in_step({2, 1}, 2, 2);
  expect_bits_of_mirrored_in_step({2, 2}, 3, 1);
}

TEST_F(ParameterServerWorkers, AssignmentsAreAggregatedOnce) {
  expect_no_error(run_in_step({1, 2}, 2, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable sum(num(0.0), {.name = "sum", .aggregation = VariableAggregation::kSum});
    Variable outside(num(0.0), {.name = "outside"});
    for (int step = 1; step <= 3; ++step) {
      outside.assign_add(1.0);
      EXPECT_EQ(outside.value().item(), static_cast<float>(step));
      const auto seen = strategy.run([&] {
        sum.assign_add(num(replica_number()));
        return sum.value();
      });
      for (const double value : numbers(seen)) EXPECT_EQ(value, 3.0 * step);  // 0 + 1 + 2
    }
  }));
}

TEST_F(ParameterServerWorkers, UnsummedGradientsMustBeEqualOnAllWorkers) {
  const auto errors = run_in_step({1, 1}, 1, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable v(num(0.0), {.name = "v"});
    Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.5});
    const auto apply = [&](float gradient) {
      optimizer.apply_gradients(std::vector<Gradient>{num(gradient)},
                                {.aggregation = GradientAggregation::kNone});
    };
    strategy.run([&] { apply(2.0f); });
    EXPECT_EQ(v.value().item(), -1.0f);
    strategy.run([&] { apply(replica_number()); });
  });
  EXPECT_THAT(errors, Each(HasSubstr("Variable 'v': replicas 0 and 1 share its value")));
}

TEST_F(ParameterServerWorkers, DifferentVariablesFailOnEveryWorker) {
  const auto errors = run_in_step({1, 1}, 1, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable variable(num(strategy.worker()), {.name = "w"});
  });
  EXPECT_THAT(errors, Each(HasSubstr("the workers create different variables")));
}

// In each of five steps, two replicas of one worker read two variables twice and update both.
TEST_F(UpdateModes, ValuesAndGradientsAreSentOncePerStep) {
  const Services servers = make_servers(1);
  ParameterServerStrategy strategy(0, 1, servers, options_of(UpdateMode::kAsync, 2));
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(Tensor::ones({4}), {.name = "a"}),
                                           Variable(Tensor::ones({4}), {.name = "b"})};
  Sgd optimizer(variables, {.learning_rate = 0.1});
  const auto step = [&] {
    GradientTape tape;
    Tensor sum = num(0.0);
    for (const Variable& variable : variables) {
      sum = sum + reduce_sum(variable.value() * variable.value());
    }
    optimizer.minimize(tape, sum);
  };
  strategy.run(step);
  const auto counts = [&] { return static_cast<internal::VariableStore&>(*servers[0]).counts(); };
  const StoreCounts before = counts();
  for (int i = 0; i < 5; ++i) strategy.run(step);
  const StoreCounts after = counts();
  // A step also reads the optimizer's step counter and its learning rate. No step changes the rate,
  // so the server does not send its value again.
  EXPECT_EQ(after.num_reads - before.num_reads, 5u * 4u);
  EXPECT_EQ(after.num_reads_unchanged - before.num_reads_unchanged, 5u);
  EXPECT_EQ(after.num_changes - before.num_changes, 5u * 3u);
}

TEST_F(UpdateModes, StepsAreSynchronousByDefault) {
  EXPECT_EQ(ParameterServerOptions{}.update_mode, UpdateMode::kSync);
  ParameterServerStrategy strategy({.local = on_cpus(2)});
  EXPECT_EQ(strategy.update_mode(), UpdateMode::kSync);
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(num(0.0), {.name = "w"})};
  Sgd optimizer(variables, {.learning_rate = 1.0});
  const PerReplica<Tensor> read = strategy.run([&] {
    GradientTape tape;
    const Tensor value = variables[0].value();
    optimizer.minimize(tape, value * (1.0f + replica_number()));
    return value;
  });
  // Both replicas read the value 0; then one update applies both gradients, 1 + 2.
  EXPECT_THAT(numbers(read), ElementsAre(0, 0));
  EXPECT_EQ(variables[0].value().item(), -3.0f);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 1);
}

}  // namespace
}  // namespace tutti::update_mode_tests
