// Tests failures of workers as processes that the others report: stopped, late and slow workers;
// and grace periods.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "tests/support/scopes.h"
#include "tests/workers/worker_processes.h"
#include "tutti/model/training/training_session.h"

namespace tutti::worker_tests {
namespace {

Tensor number_on_replica(double value) {
  return Tensor::scalar(value, DType::kFloat32, ReplicaContext::current().device());
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
  EXPECT_THAT(line, HasSubstr("worker 1 ("));
  EXPECT_THAT(line, HasSubstr("'reduce'"));
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
    for (const Json& error : results_of("workers_with_listen_addresses",
                                        {.num_workers = 2, .environment = {{name, value}}})) {
      expect_error(error, "INVALID_ARGUMENT", {expected});
    }
  }
}

// Adds 1 per replica in each of six steps; worker 1 is stopped in its first run.
TUTTI_PROCESS_FUNCTION(workers_of_which_one_is_stopped) {
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
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

TEST(WorkerFailures, AStoppedWorkerThatGoesOnTooLateEndsAndComesBackAsANewProcess) {
  MultiProcessRunner runner("workers_of_which_one_is_stopped",
                            {.num_workers = 2, .auto_restart = true});
  runner.start();
  EXPECT_THAT(runner.wait_for_line("worker", 0, "going back to the last commit"),
              ::testing::ContainsRegex("worker 1 .*stopped"));
  runner.send("worker", 1, SIGCONT);
  const auto& result = runner.join();
  // Six steps of two replicas, each counted once.
  EXPECT_EQ(result.return_values, (std::vector<Json>{Json(12.0), Json(12.0)}));
  EXPECT_TRUE(testing::has_line(result.output, "was given up by the job; start it anew"));
}

// Runs a session with 10 s of grace and steps of 1 s; worker 1 gets a signal in step 7. Returns the
// steps saved because of it on this worker.
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
  Json result = Json::object();
  result.set("code", session.finish());
  result.set("saved", Json(std::move(saved)));
  result.set("total", total.value().item_double());
  return result;
}

TEST(WorkerFailures, GracePeriodEndsForAllWorkersAfterOneStep) {
  const std::vector<Json> results = results_of("workers_with_a_grace_period", 2);
  EXPECT_EQ(results[0].at("saved").dump(), results[1].at("saved").dump());
  ASSERT_EQ(results[0].at("saved").as_array().size(), 2u);
  const std::int64_t first = results[0].at("saved").as_array()[0].as_int();
  const std::int64_t last = results[0].at("saved").as_array()[1].as_int();
  EXPECT_GE(first, 7);  // as soon as both had agreed
  // Worker 1 noticed the signal after 7 s, so the limit is 17 s less a margin of two steps.
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
  const auto strategy =
      connect_workers({.local = {.devices = "cpu:0"}, .stragglers = {.repeat_after_steps = 10}});
  const auto scope = strategy->scope();
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
  Json result = Json::object();
  result.set("step", is_found() ? strategy->straggler()->step : 0);
  result.set("share", is_found() ? strategy->straggler()->share : 0.0);
  return result;
}

// straggler_watch_test.cc checks the step and the share with a simulated clock.
TEST(WorkerFailures, FiveTimesSlowerWorkerIsNamedByAllInTheSameStep) {
  MultiProcessRunner runner("a_worker_that_is_slow", {.num_workers = 3});
  runner.start();
  const std::string line = runner.wait_for_line("worker", 0, "worker 1 is slow: the others waited");
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

}  // namespace
}  // namespace tutti::worker_tests
