// Tests how workers report differences (in input, settings and writes) and failures (stopped, late
// and slow workers), and how they use a grace period.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <limits>

#include "tests/support/scopes.h"
#include "tests/workers/worker_processes.h"
#include "tutti/horovod.h"
#include "tutti/model/training/training_session.h"

namespace tutti::worker_tests::worker_reports_test {

/// Creates a worker's strategy from, for example, {"strategy": "fully_sharded", "way": "tcp",
/// "devices": "cpu:0"}.
std::unique_ptr<Strategy> make_workers(const Json& arguments) {
  const auto text = [&](const char* key, const char* otherwise) {
    const Json* const found = arguments.find(key);
    return found ? found->as_string() : std::string(otherwise);
  };
  WorkerGroupOptions cluster;
  if (text("way", "") == "tcp") cluster.way = ConnectOptions::Way::kTcp;
  LocalStrategyOptions local{.devices = text("devices", "cpu:0")};
  if (text("compression", "") == "bfloat16") {
    local.cross_device_ops.options.compression = WireCompression::kBFloat16;
  }
  if (text("strategy", "") == "fully_sharded") {
    return std::make_unique<FullyShardedStrategy>(
        *resolver_from_environment(),
        FullyShardedOptions{.local = local, .min_shard_bytes = 0, .cluster = cluster});
  }
  return std::make_unique<MultiWorkerMirroredStrategy>(
      *resolver_from_environment(), MultiWorkerOptions{.local = local, .cluster = cluster});
}

/// Returns a dataset of 40 distinct rows.
Dataset examples() {
  std::vector<float> x;
  for (int i = 0; i < 80; ++i) x.push_back(0.01f * static_cast<float>(i));
  return Dataset::from_tensor_slices({Tensor::from({40, 2}, x), Tensor::ones({40, 1})});
}

/// Callback that sets the learning rate only on worker 0.
class ChiefSetsRate : public Callback {
 public:
  void on_epoch_begin(std::int64_t) override {
    if (this_process().index == 0) model().optimizer().set_learning_rate(0.5);
  }
};

/// Runs fit(). The argument "differ" names the setting in which the workers differ.
TUTTI_PROCESS_FUNCTION(consistency_fit) {
  const std::string differ = arguments.at("differ").as_string();
  const bool is_other = this_process().index == 1;
  const auto strategy = make_workers(arguments);
  const auto scope = strategy->scope();
  Sequential model(Input{{2}}, Dense(1));
  SgdOptions sgd{.learning_rate = 0.125};
  if (differ == "momentum" && is_other) sgd.momentum = 0.75;
  model.compile({.optimizer = sgd, .loss = "mse"});
  const std::uint64_t seed = differ == "seed" && is_other ? 2 : 1;
  const std::int64_t batch = differ == "batch" && is_other ? 4 : 8;
  FitOptions fit{.epochs = 2, .steps_per_epoch = 3, .verbose = Verbosity::kSilent};
  if (differ == "rate") fit.callbacks = {ChiefSetsRate()};
  return error_as_json([&] { model.fit(examples().shuffle(40, seed).batch(batch).repeat(), fit); });
}

/// Runs fit(); replica 1, which is on worker 1, gets a NaN label in batch 1.
TUTTI_PROCESS_FUNCTION(consistency_of_blame) {
  const auto strategy = make_workers(arguments);
  const auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.optimizer = "sgd", .loss = "mse"});
  std::vector<float> labels(6, 1.0f);
  labels[3] = std::numeric_limits<float>::quiet_NaN();  // batch 1, replica 1 (2 rows per batch)
  const auto guard = std::make_shared<TerminateOnNaN>();
  model.fit(
      Tensor::ones({6, 1}), Tensor::from({6, 1}, labels),
      {.batch_size = 2, .callbacks = {guard}, .verbose = Verbosity::kSilent, .shuffle = false});
  return Json(guard->reason());
}

TEST(TerminateOnNaN, ErrorNamesReplicaOfRemoteWorker) {
  for (const Json& value : results_of("consistency_of_blame", 2)) {
    EXPECT_THAT(value.as_string(), HasSubstr("batch 1"));
    EXPECT_THAT(value.as_string(), HasSubstr("the loss of replica 1 is not finite"));
  }
}

struct Case {
  const char* differ;
  const char* code;
  std::vector<const char*> parts;  // fragments of the message
};

void expect_all_name(const Case& expected, Json arguments) {
  arguments.set("differ", expected.differ);
  for (const Json& value : results_of("consistency_fit", 2, arguments)) {
    expect_error(value, expected.code, expected.parts);
  }
}

const Case kBatch{"batch",
                  "INVALID_ARGUMENT",
                  {"global batches differ", "worker 0 has 8 rows, worker 1 has 4 rows"}};
const Case kSeed{"seed", "INVALID_ARGUMENT", {"first batches", "worker 0 has", "seed"}};
const Case kRate{"rate",
                 "INVALID_ARGUMENT",
                 {"learning rates of optimizer 'sgd'", "worker 0 has 0.5, worker 1 has 0.125"}};
const Case kMomentum{
    "momentum", "INVALID_ARGUMENT", {"settings of optimizer 'sgd'", "\"momentum\":0.75"}};
const Case kNothing{"nothing", "OK", {}};

TEST(WorkerConsistency, FitErrorNamesDifferingInputAndSettings) {
  for (const Case& each : {kBatch, kSeed, kRate, kMomentum, kNothing}) {
    expect_all_name(each, Json::object());
  }
}

TEST(WorkerConsistency, FullyShardedFitErrorNamesDifferences) {
  for (const Case& each : {kBatch, kRate, kNothing}) {
    expect_all_name(each, Json::object().set("strategy", "fully_sharded"));
  }
}

TEST(WorkerConsistency, DifferencesAreReportedOverTcpWithCompression) {
  for (const Case& each : {kSeed, kNothing}) {
    expect_all_name(each, Json::object().set("way", "tcp").set("compression", "bfloat16"));
  }
}

/// Runs a custom loop that trains `weight` towards 1; calls `between` before each step.
Json train(const Json& arguments, const std::function<void(Variable&, int)>& between) {
  const auto strategy = make_workers(arguments);
  const auto scope = strategy->scope();
  Variable weight(Tensor::zeros({8}), {.name = "weight"});
  Sgd optimizer(std::vector<Variable>{weight}, {.learning_rate = 0.125});
  int step = 0;
  Json result = error_as_json([&] {
    for (; step < 6; ++step) {
      between(weight, step);
      strategy->run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)));
      });
    }
  });
  return result.set("steps", step);
}

TUTTI_PROCESS_FUNCTION(consistency_write) {
  return train(arguments, [](Variable& weight, int step) {
    if (step == 3 && this_process().index == 1) weight.assign(Tensor::full({8}, 3.0));
  });
}

TEST(WorkerConsistency, WriteOnOneWorkerIsReportedInNextStep) {
  for (const char* const strategy : {"mirrored", "fully_sharded"}) {
    const auto arguments = Json::object().set("strategy", strategy);
    for (const Json& value : results_of("consistency_write", 3, arguments)) {
      expect_error(value, "FAILED_PRECONDITION",
                   {"step 3", "'weight' was written outside a step", "worker 1 wrote ",
                    "workers 0, 2 wrote nothing"});
      EXPECT_EQ(value.at("steps").as_int(), 3);
    }
  }
}

/// The program calls all_reduce() itself, so the digest of writes is sent with the step's values.
TUTTI_PROCESS_FUNCTION(consistency_write_by_hand) {
  const auto strategy = make_workers(arguments);
  const auto scope = strategy->scope();
  Variable rate(Tensor::ones({}), {.name = "rate", .trainable = false});
  int step = 0;
  Json result = error_as_json([&] {
    for (; step < 4; ++step) {
      if (step == 2 && this_process().index == 0) rate.assign(2.5);
      strategy->run(
          [&] { (void)ReplicaContext::current().all_reduce(ReduceOp::kSum, rate.value()); });
    }
  });
  return result.set("steps", step);
}

TEST(WorkerConsistency, WriteIsReportedUnderManualAllReduce) {
  for (const Json& value : results_of("consistency_write_by_hand", 2)) {
    expect_error(value, "FAILED_PRECONDITION", {"worker 0 wrote 2.5, worker 1 wrote nothing"});
    EXPECT_EQ(value.at("steps").as_int(), 2);
  }
}

/// Covers devices and values that may differ between workers, and equal writes by all workers.
TUTTI_PROCESS_FUNCTION(consistency_of_what_may_differ) {
  const int index = this_process().index;
  const auto strategy = make_workers(
      Json::object().set("devices", index == 0 ? "cpu:0-1" : "cpu:0"));  // worker 1 has one replica
  const auto scope = strategy->scope();
  Variable weight(Tensor::zeros({}), {.name = "weight"});
  Variable own = count_of_replicas("own");
  Variable divergent(Tensor::zeros({}),
                     {.name = "divergent", .trainable = false, .allow_divergent = true});
  Sgd optimizer(std::vector<Variable>{weight}, {.learning_rate = 0.125});
  const std::string file = concat(arguments.at("folder").as_string(), "/saved");
  Checkpoint checkpoint({weight}, checkpoint_options(*strategy));
  std::int64_t rows = 0;
  const auto step = [&](const PerReplica<Batch>& batch) {
    rows += batch[0].global_rows();
    strategy->run(
        [&](const Batch& own_batch) {
          GradientTape tape;
          optimizer.minimize(tape, multiply(reduce_sum(own_batch[0]), weight.value()));
        },
        batch);
  };
  // The workers have different numbers of rows: 7 for 2 replicas, 4 for 1 replica.
  const auto rows_of_worker = [&](const InputContext&) {
    const std::int64_t count = index == 0 ? 7 : 4;
    return Dataset::from_tensor_slices({Tensor::full({count}, 1.0 + index)}).batch(2);
  };
  for (const auto& batch : strategy->distribute_datasets_from_function(rows_of_worker)) {
    step(batch);
  }
  // Covers a last batch that leaves a replica without rows. Only worker 1 writes to the values that
  // may differ between workers.
  const Dataset all = Dataset::from_tensor_slices({Tensor::full({10}, 1.0)});
  for (const auto& batch : strategy->distribute_dataset(all.batch(4))) {
    if (index == 1) own.assign(3.0);
    if (index == 1) divergent.assign(3.0);
    step(batch);
  }
  // All workers save and restore.
  checkpoint.save(file);
  optimizer.set_learning_rate(0.5);
  weight.assign(weight.value() * 2.0f);
  checkpoint.restore(file);
  strategy->run([&] {
    GradientTape tape;
    optimizer.minimize(tape, weight.value() * 1.0f);
  });
  return Json::object().set("rows", rows).set("hash", hash_variables(std::vector{weight}));
}

TEST(WorkerConsistency, LegitimateDifferencesAreAccepted) {
  const auto values = results_of("consistency_of_what_may_differ", 2,
                                 Json::object().set("folder", new_folder("consistency")));
  EXPECT_EQ(values[0].at("rows").as_int(), 7 + 4 + 10);
  EXPECT_EQ(values[0].dump(), values[1].dump());
}

TUTTI_PROCESS_FUNCTION(consistency_of_ranks) {
  hvd::init();
  Variable weight(Tensor::zeros({4}), {.name = "weight"});
  Sgd optimizer(std::vector<Variable>{weight},
                {.learning_rate = 0.125, .momentum = hvd::rank() == 1 ? 0.5 : 0.0});
  hvd::DistributedOptimizer distributed(optimizer);
  return error_as_json([&] {
    GradientTape tape;
    distributed.minimize(tape, reduce_sum(weight.value()));
  });
}

TEST(WorkerConsistency, HorovodErrorNamesDifferingSettings) {
  for (const Json& value : results_of("consistency_of_ranks", 2)) {
    expect_error(value, "INVALID_ARGUMENT", {"\"momentum\":0.5"});
  }
}

Tensor number_on_replica(double value) {
  return Tensor::scalar(value, DType::kFloat32, ReplicaContext::current().device());
}

TUTTI_PROCESS_FUNCTION(worker_is_late_for_a_reduction) {
  const auto strategy = connect_workers();
  if (this_process().index == 1) Clock::system().sleep_for(std::chrono::seconds(6));
  const auto ones = strategy->run([] { return number_on_replica(1.0); });
  return Json(strategy->reduce(ReduceOp::kSum, ones).item_double());
}

TEST(WorkerFailures, LateWorkerIsLoggedWhilePeersWait) {
  MultiProcessRunner runner("worker_is_late_for_a_reduction", {.num_workers = 2});
  runner.start();
  const std::string line = runner.wait_for_line("worker", 0, "is late: worker 0 has waited");
  EXPECT_THAT(line, HasSubstr("worker 1 ("));
  EXPECT_THAT(line, HasSubstr("'reduce'"));
  EXPECT_EQ(runner.join().return_values, (std::vector<Json>{Json(2.0), Json(2.0)}));
}

TUTTI_PROCESS_FUNCTION(workers_with_listen_addresses) {
  return error_as_json([] { connect_workers(); });
}

TEST(WorkerFailures, InvalidDataAddressVariablesAreRejected) {
  for (const auto& [name, value, expected] :
       {std::tuple{"TUTTI_DATA_LISTEN", "5000", "expected host:port, such as 0.0.0.0:5000"},
        std::tuple{"TUTTI_DATA_LISTEN", "0.0.0.0:5000", "the job has neither a secret nor TLS"},
        std::tuple{"TUTTI_DATA_ADDRESS", "here",
                   "expected host:port, such as 203.0.113.7:31000"}}) {
    for (const Json& error : results_of("workers_with_listen_addresses",
                                        {.num_workers = 2, .environment = {{name, value}}})) {
      expect_error(error, "INVALID_ARGUMENT", {expected});
    }
  }
}

// Adds 1 per replica in each of six steps; worker 1 is stopped by a signal in its first run.
TUTTI_PROCESS_FUNCTION(workers_of_which_one_is_stopped) {
  const ScopedWorkers strategy;
  Variable total = counter("total");
  std::int64_t step = 0;
  const Checkpoint state = recoverable(Checkpoint({total}), *strategy, step);
  Recovery recovery(*strategy, state);
  recovery.run([&] {
    while (step < 6) {
      if (step == 3 && this_process().index == 1 && testing::num_restarts() == 0) {
        ::raise(SIGSTOP);
      }
      strategy->run([&] { total.assign_add(number_on_replica(1.0)); });
      recovery.commit(++step);
    }
  });
  return Json(total.value().item_double());
}

TEST(WorkerFailures, WorkerResumedTooLateIsReplaced) {
  MultiProcessRunner runner("workers_of_which_one_is_stopped",
                            {.num_workers = 2, .auto_restart = true});
  runner.start();
  EXPECT_THAT(runner.wait_for_line("worker", 0, "will roll back to the last commit"),
              ::testing::ContainsRegex("worker 1 .*stopped"));
  runner.send("worker", 1, SIGCONT);
  const auto& result = runner.join();
  // The six steps of each of the two replicas are counted exactly once.
  EXPECT_EQ(result.return_values, (std::vector<Json>{Json(12.0), Json(12.0)}));
  EXPECT_TRUE(testing::has_line(result.output, "the job has given up on worker 1"));
}

// Runs a session with steps of 1 s and a grace period of 10 s; worker 1 gets a signal in step 7.
// Returns the steps after which this process saved.
TUTTI_PROCESS_FUNCTION(workers_with_a_grace_period) {
  const auto strategy = connect_workers();
  const Tensor ones = Tensor::ones({8, 1});
  DistributedDataset batches =
      strategy->distribute_dataset(Dataset::from_tensor_slices(ones, ones).batch(4));
  const auto scope = strategy->scope();
  Variable total = counter("total");
  const Variable w(Tensor::zeros({}), {.name = "w"});
  const Sgd optimizer(std::vector{w}, {.learning_rate = 0.1});
  test_scopes::StepClock clock;
  Json::Array saved;
  const auto save = [&](std::int64_t steps) { saved.emplace_back(steps); };
  TrainingSession session(*strategy, {total}, optimizer, batches,
                          {.epochs = 100,
                           .grace_period = std::chrono::seconds(10),
                           .save_on_signal = save,
                           .clock = &clock,
                           .show_progress = false});
  session.train([&] {
    while (session.begin_epoch()) {
      for ([[maybe_unused]] const PerReplica<Batch>& batch : batches) {
        const std::int64_t steps = session.record().steps();
        if (steps == 6 && this_process().index == 1) std::raise(SIGTERM);
        strategy->run([&] { total.assign_add(number_on_replica(1.0)); });
        clock.sleep_for(std::chrono::seconds(1));
        Clock::system().sleep_for(std::chrono::milliseconds(20));
        if (!session.step(0.0f, 4)) break;
      }
      session.end_epoch("nothing", 0.0);
    }
  });
  const int code = session.finish();
  return Json::object()
      .set("code", code)
      .set("saved", Json(std::move(saved)))
      .set("total", total.value().item_double());
}

TEST(WorkerFailures, GracePeriodEndsAfterSameStepOnAllWorkers) {
  const std::vector<Json> results = results_of("workers_with_a_grace_period", 2);
  EXPECT_EQ(results[0].at("saved").dump(), results[1].at("saved").dump());
  ASSERT_EQ(results[0].at("saved").as_array().size(), 2u);
  const std::int64_t first = results[0].at("saved").as_array()[0].as_int();
  const std::int64_t last = results[0].at("saved").as_array()[1].as_int();
  EXPECT_GE(first, 7);  // the workers save once they have agreed on a step
  // Worker 1 noticed the signal after 7 s, so the limit is 17 s minus a margin of two steps.
  EXPECT_EQ(last, std::max<std::int64_t>(15, first + 1));
  for (const Json& each : results) {
    EXPECT_EQ(each.at("code").as_int(), 75);
    EXPECT_EQ(each.at("total").as_double(), 2.0 * static_cast<double>(last));
  }
}

constexpr Duration kQuickStep = std::chrono::milliseconds(20);
constexpr Duration kSlowStep = 5 * kQuickStep;

// Worker 1 sleeps five times as long as its peers, which then wait for it in their sums.
TUTTI_PROCESS_FUNCTION(a_worker_that_is_slow) {
  const ScopedWorkers strategy(
      {.local = {.devices = "cpu:0"}, .stragglers = {.repeat_after_steps = 10}});
  Variable weight(Tensor::zeros({8}), {.name = "weight"});
  Sgd optimizer(std::vector<Variable>{weight}, {.learning_rate = 0.01});
  const Duration length = this_process().index == 1 ? kSlowStep : kQuickStep;
  const auto is_found = [&] { return strategy->straggler() && strategy->straggler()->worker == 1; };
  for (int step = 0; step < 300 && !is_found(); ++step) {
    Clock::system().sleep_for(length);
    strategy->run([&] {
      GradientTape tape;
      optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)));
    });
  }
  return Json::object()
      .set("step", is_found() ? strategy->straggler()->step : 0)
      .set("share", is_found() ? strategy->straggler()->share : 0.0);
}

// worker_team_test.cc uses a simulated clock to check the step and the share.
TEST(WorkerFailures, SlowWorkerIsReportedByAllWorkersInSameStep) {
  MultiProcessRunner runner("a_worker_that_is_slow", {.num_workers = 3});
  runner.start();
  const std::string line =
      runner.wait_for_line("worker", 0, "worker 1 is slow: the other workers waited");
  EXPECT_THAT(line, HasSubstr("% of the last 15 steps for it"));
  const std::vector<Json>& found = runner.join().return_values;
  ASSERT_EQ(found.size(), 3u);
  const std::int64_t step = found[0].at("step").as_int();
  EXPECT_GT(step, 0);
  for (const Json& worker : found) {
    EXPECT_EQ(worker.at("step").as_int(), step);
    EXPECT_GE(worker.at("share").as_double(), StragglerOptions().share);
    EXPECT_LE(worker.at("share").as_double(), 1.0);
  }
  RecordProperty("step", std::to_string(step));
}

}  // namespace tutti::worker_tests::worker_reports_test
