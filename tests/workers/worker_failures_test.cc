// Workers as processes: one that ends or is stopped, told to the others; restarts; agreed stops.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/cluster.h"
#include "tutti/model/training/training_session.h"
#include "tutti/tutti.h"

namespace tutti::worker_tests {
namespace {

using testing::MultiProcessRunner;
using testing::this_process;

std::unique_ptr<MultiWorkerMirroredStrategy> connect_workers() {
  return std::make_unique<MultiWorkerMirroredStrategy>(
      *resolver_from_environment(), MultiWorkerOptions{.local = {.devices = "cpu:0"}});
}

Variable counter(const std::string& name) {
  return Variable(Tensor::zeros({}),
                  {.name = name, .trainable = false, .aggregation = VariableAggregation::kSum});
}

Tensor number_on_replica(double value) {
  return Tensor::scalar(value, DType::kFloat32, ReplicaContext::current().device());
}

/// What `fn` throws: code and message.
Json error_as_json(const std::function<void()>& fn) {
  Json json = Json::object();
  try {
    fn();
    json.set("code", "OK");
  } catch (const Error& error) {
    json.set("code", to_string(error.code()));
    json.set("message", error.message());
  }
  return json;
}

void expect_worker_1_is_missed(const Json& error) {
  EXPECT_THAT(error.at("code").as_string(), ::testing::AnyOf("UNAVAILABLE", "ABORTED"));
  EXPECT_THAT(error.at("message").as_string(),
              ::testing::AnyOf(::testing::HasSubstr("worker 1"), ::testing::HasSubstr("rank 1")));
}

TUTTI_PROCESS_FUNCTION(worker_ends_between_variables) {
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
  const Variable first = counter("first");
  if (this_process().index == 1) ::_exit(7);
  return error_as_json([] { const Variable second = counter("second"); });
}

TEST(WorkerFailures, WorkerExitBetweenTwoVariablesIsReported) {
  MultiProcessRunner runner("worker_ends_between_variables", {.num_workers = 2});
  runner.start();
  EXPECT_THROW(runner.join(std::chrono::seconds(60)), Error);  // worker 1 ended with 7
  ASSERT_EQ(runner.result().return_values.size(), 1u);
  expect_worker_1_is_missed(runner.result().return_values[0]);
}

TUTTI_PROCESS_FUNCTION(worker_ends_between_reductions) {
  const auto strategy = connect_workers();
  const auto reduce_once = [&] {
    const auto values = strategy->run([] { return number_on_replica(1.0); });
    return strategy->reduce(ReduceOp::kSum, values).item();
  };
  EXPECT_EQ(reduce_once(), 2.0f);
  if (this_process().index == 1) ::_exit(7);
  return error_as_json([&] { reduce_once(); });
}

TEST(WorkerFailures, SecondReductionFailsWhenTheOtherWorkerHasEnded) {
  MultiProcessRunner runner("worker_ends_between_reductions", {.num_workers = 2});
  runner.start();
  EXPECT_THROW(runner.join(std::chrono::seconds(60)), Error);
  ASSERT_EQ(runner.result().return_values.size(), 1u);
  expect_worker_1_is_missed(runner.result().return_values[0]);
}

TUTTI_PROCESS_FUNCTION(worker_stops_before_a_reduction) {
  const auto strategy = connect_workers();
  std::cout << "is connected" << std::endl;
  if (this_process().index == 1) ::raise(SIGSTOP);
  return error_as_json([&] {
    strategy->reduce(ReduceOp::kSum, strategy->run([] { return number_on_replica(1.0); }));
  });
}

TEST(WorkerFailures, AStoppedWorkerIsNamedToTheOthers) {
  MultiProcessRunner runner("worker_stops_before_a_reduction", {.num_workers = 3});
  runner.start();
  runner.wait_for_line("worker", 0, "is connected");
  while (runner.process_exists("worker", 0) || runner.process_exists("worker", 2)) {
    Clock::system().sleep_for(std::chrono::milliseconds(50));
  }
  runner.terminate("worker", 1);
  for (const Json& error : runner.join().return_values) {
    expect_worker_1_is_missed(error);
    EXPECT_THAT(error.at("message").as_string(), ::testing::HasSubstr("stopped"));
  }
}

TUTTI_PROCESS_FUNCTION(worker_is_late_for_a_reduction) {
  const auto strategy = connect_workers();
  if (this_process().index == 1) Clock::system().sleep_for(std::chrono::seconds(6));
  const auto ones = strategy->run([] { return number_on_replica(1.0); });
  return Json(strategy->reduce(ReduceOp::kSum, ones).item_double());
}

TEST(WorkerFailures, LateWorkerIsNamedWhileTheOthersWait) {
  MultiProcessRunner runner("worker_is_late_for_a_reduction", {.num_workers = 2});
  runner.start();
  const std::string line = runner.wait_for_line("worker", 0, "is late: worker 0 waits in");
  EXPECT_THAT(line, ::testing::HasSubstr("worker 1 ("));
  EXPECT_THAT(line, ::testing::HasSubstr("'reduce'"));
  EXPECT_EQ(runner.join().return_values, (std::vector<Json>{Json(2.0), Json(2.0)}));
}

TUTTI_PROCESS_FUNCTION(workers_with_listen_addresses) {
  return error_as_json([] { connect_workers(); });
}

TEST(WorkerFailures, AddressesForMappedPortsAreCheckedBeforeTheyAreUsed) {
  for (const auto& [name, value, expected] :
       {std::tuple{"TUTTI_DATA_LISTEN", "5000", "expected host:port, such as 0.0.0.0:5000"},
        std::tuple{"TUTTI_DATA_LISTEN", "0.0.0.0:5000", "the job has neither a secret nor TLS"},
        std::tuple{"TUTTI_DATA_ADDRESS", "here",
                   "expected host:port, such as 203.0.113.7:31000"}}) {
    MultiProcessRunner runner("workers_with_listen_addresses",
                              {.num_workers = 2, .environment = {{name, value}}});
    runner.start();
    for (const Json& error : runner.join().return_values) {
      EXPECT_EQ(error.at("code").as_string(), "INVALID_ARGUMENT");
      EXPECT_THAT(error.at("message").as_string(), ::testing::HasSubstr(expected));
    }
  }
}

// Adds 1 per replica in each of six steps; worker 1 crashes, or is stopped, in its first life.
TUTTI_PROCESS_FUNCTION(workers_with_recovery) {
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
  Variable total = counter("total");
  std::int64_t step = 0;
  Checkpoint state({total});
  state.add_state("strategy", {[&] { return strategy->save_state(); },
                               [&](const Json& json) { strategy->restore_state(json); }});
  state.add_state("step",
                  {[&] { return Json(step); }, [&](const Json& json) { step = json.as_int(); }});
  Recovery recovery(*strategy, state);
  recovery.run([&] {
    while (step < 6) {
      if (step == 3 && this_process().index == 1 && testing::num_restarts() == 0) {
        if (!arguments.find("stops")) ::_exit(7);
        ::raise(SIGSTOP);
      }
      strategy->run([&] { total.assign_add(number_on_replica(1.0)); });
      recovery.commit(++step);
    }
  });
  const auto ones = strategy->run([] { return number_on_replica(1.0); });
  Json result = Json::object();
  result.set("total", total.value().item_double());
  result.set("sum", strategy->reduce(ReduceOp::kSum, ones).item_double());
  return result;
}

TEST(WorkerFailures, WorkersEndEqualAfterCrashAndRestart) {
  MultiProcessRunner runner("workers_with_recovery", {.num_workers = 2, .auto_restart = true});
  runner.start();
  const auto& results = runner.join().return_values;
  ASSERT_EQ(results.size(), 2u);
  for (const Json& result : results) {
    EXPECT_EQ(result.at("total").as_double(),
              12.0);  // six steps of two replicas, each counted once
    EXPECT_EQ(result.at("sum").as_double(), 2.0);
  }
}

TEST(WorkerFailures, AStoppedWorkerThatGoesOnTooLateEndsAndComesBackAsANewProcess) {
  Json arguments = Json::object();
  arguments.set("stops", true);
  MultiProcessRunner runner("workers_with_recovery", {.num_workers = 2, .auto_restart = true},
                            arguments);
  runner.start();
  runner.wait_for_line("worker", 0, "going back to the last commit");
  runner.send("worker", 1, SIGCONT);
  const auto& result = runner.join();
  ASSERT_EQ(result.return_values.size(), 2u);
  for (const Json& each : result.return_values) EXPECT_EQ(each.at("total").as_double(), 12.0);
  EXPECT_TRUE(testing::has_line(result.output, "was given up by the job; start it anew"));
}

// Trains until it is stopped (or to step 40), saving where all stop.
TUTTI_PROCESS_FUNCTION(workers_that_stop_together) {
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
  Variable total = counter("total");
  CheckpointManager manager(Checkpoint({total}, checkpoint_options(*strategy)),
                            arguments.at("folder").as_string());
  const auto info = manager.restore_latest();
  std::int64_t step = info ? info->step : 0;
  bool is_asked = false;
  const std::int64_t first = step;
  while (step < 40) {
    strategy->run([&] { total.assign_add(number_on_replica(1.0)); });
    ++step;
    // As a signal's flag would: one worker is asked, in the middle of its first life.
    if (first == 0 && step == 5 && this_process().index == 2) is_asked = true;
    if (is_asked) strategy->request_stop("SIGTERM");
    Clock::system().sleep_for(std::chrono::milliseconds(20));
    if (strategy->stops_after(step)) break;
  }
  manager.save(step);
  Json result = Json::object();
  result.set("step", step);
  result.set("total", total.value().item_double());
  return result;
}

TEST(WorkerFailures, WorkersStopAfterAnAgreedStepAndResumeFromItsCheckpoint) {
  const std::string folder =
      (std::filesystem::path(::testing::TempDir()) / concat("agreed-stop-", ::getpid())).string();
  Json arguments = Json::object();
  arguments.set("folder", folder);
  const auto run_once = [&] {
    MultiProcessRunner runner("workers_that_stop_together", {.num_workers = 3}, arguments);
    runner.start();
    return runner.join().return_values;
  };
  const std::vector<Json> stopped = run_once();
  ASSERT_EQ(stopped.size(), 3u);
  const std::int64_t step = stopped[0].at("step").as_int();
  EXPECT_GE(step, 5);
  EXPECT_LT(step, 40);
  for (const Json& each : stopped) {
    EXPECT_EQ(each.at("step").as_int(), step);
    EXPECT_EQ(each.at("total").as_double(), 3.0 * static_cast<double>(step));
  }
  for (const Json& each : run_once()) {
    EXPECT_EQ(each.at("step").as_int(), 40);
    EXPECT_EQ(each.at("total").as_double(), 120.0);
  }
  std::filesystem::remove_all(folder);
}

/// Time that passes when the test says so.
class StepClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint time) override { now_ = time; }

 private:
  TimePoint now_{};
};

// A session with 10 s of grace whose steps take 1 s; worker 1 gets a signal in step 7. What was
// saved because of it, on this worker.
TUTTI_PROCESS_FUNCTION(workers_with_a_grace_period) {
  const auto strategy = connect_workers();
  const Tensor ones = Tensor::ones({8, 1});
  DistributedDataset batches =
      strategy->distribute_dataset(Dataset::from_tensor_slices(ones, ones).batch(4));
  const auto scope = strategy->scope();
  Variable total = counter("total");
  const Variable w(Tensor::zeros({}), {.name = "w"});
  const Sgd optimizer(std::vector{w}, {.learning_rate = 0.1});
  StepClock clock;
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
  Json result = Json::object();
  result.set("code", session.finish());
  result.set("saved", Json(std::move(saved)));
  result.set("total", total.value().item_double());
  return result;
}

TEST(WorkerFailures, GracePeriodEndsForAllWorkersAfterOneStep) {
  MultiProcessRunner runner("workers_with_a_grace_period", {.num_workers = 2});
  runner.start();
  const std::vector<Json> results = runner.join().return_values;
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].at("saved").dump(), results[1].at("saved").dump());
  ASSERT_EQ(results[0].at("saved").as_array().size(), 2u);
  const std::int64_t first = results[0].at("saved").as_array()[0].as_int();
  const std::int64_t last = results[0].at("saved").as_array()[1].as_int();
  EXPECT_GE(first, 7);  // as soon as both had agreed
  // Worker 1 saw the signal after 7 s: 17 s less room for two steps.
  EXPECT_EQ(last, std::max<std::int64_t>(15, first + 1));
  for (const Json& each : results) {
    EXPECT_EQ(each.at("code").as_int(), 75);
    EXPECT_EQ(each.at("total").as_double(), 2.0 * static_cast<double>(last));
  }
}

constexpr Duration kQuickStep = std::chrono::milliseconds(20);
constexpr Duration kSlowStep = 5 * kQuickStep;

// Worker 1 sleeps five times as long as the others, whose sums wait for it.
TUTTI_PROCESS_FUNCTION(a_worker_that_is_slow) {
  MultiWorkerMirroredStrategy strategy(
      *resolver_from_environment(),
      MultiWorkerOptions{.local = {.devices = "cpu:0"}, .stragglers = {.repeat_after_steps = 10}});
  const auto scope = strategy.scope();
  Variable weight(Tensor::zeros({8}), {.name = "weight"});
  Sgd optimizer(std::vector<Variable>{weight}, {.learning_rate = 0.01});
  const Duration length = this_process().index == 1 ? kSlowStep : kQuickStep;
  const auto is_found = [&] { return strategy.straggler() && strategy.straggler()->worker == 1; };
  for (int step = 0; step < 300 && !is_found(); ++step) {
    Clock::system().sleep_for(length);
    strategy.run([&] {
      GradientTape tape;
      optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)));
    });
  }
  Json result = Json::object();
  result.set("step", is_found() ? strategy.straggler()->step : 0);
  result.set("share", is_found() ? strategy.straggler()->share : 0.0);
  return result;
}

// In which step, and with which share, is judged on a clock of its own: straggler_watch_test.cc.
TEST(WorkerFailures, FiveTimesSlowerWorkerIsNamedByAllInTheSameStep) {
  MultiProcessRunner runner("a_worker_that_is_slow", {.num_workers = 3});
  runner.start();
  const std::string line = runner.wait_for_line("worker", 0, "worker 1 is slow: the others waited");
  EXPECT_THAT(line, ::testing::HasSubstr("% of the last 15 steps for it"));
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

TUTTI_PROCESS_FUNCTION(a_step_that_fails_on_worker_1) {
  const auto strategy = connect_workers();
  return error_as_json([&] {
    strategy->run([] {
      if (ReplicaContext::current().replica_id() == 1) {
        fail(ErrorCode::kResourceExhausted, "Running out of resources");
      }
      ReplicaContext::current().all_reduce(ReduceOp::kSum, number_on_replica(1.0));
    });
  });
}

// docs/deviations.md: tf raises the same type on all workers; here it is ABORTED on the others.
TEST(WorkerFailures, StepErrorOfOneWorkerReachesAll) {
  MultiProcessRunner runner("a_step_that_fails_on_worker_1", {.num_workers = 2});
  runner.start();
  const auto& errors = runner.join().return_values;
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].at("code").as_string(), "ABORTED");
  EXPECT_EQ(errors[1].at("code").as_string(), "RESOURCE_EXHAUSTED");
  for (const Json& error : errors) {
    EXPECT_THAT(error.at("message").as_string(), ::testing::HasSubstr("replica 1, step 0"));
    EXPECT_THAT(error.at("message").as_string(), ::testing::HasSubstr("Running out of resources"));
  }
}

}  // namespace
}  // namespace tutti::worker_tests
