// Workers that die and come back while closures run. Counts must be equal where tf asserts only >=.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti {
namespace fault_tolerance_test {

using testing::CountingStrategy;
using testing::expect_closure_error;
using testing::Gate;
using testing::HangWatchdog;
using testing::mortal_worker;
using namespace std::chrono_literals;

class FaultToleranceTest : public ::testing::Test {
 protected:
  HangWatchdog watchdog_{"workers that die", 60s};
  Gate gate_;  // outlives the workers' threads
  CountingStrategy strategy_{4};
  testing::MortalWorkers workers_{strategy_};
  ClusterCoordinator coordinator_{workers_};

  void start() {
    define_steps(coordinator_, strategy_, gate_);
    coordinator_.start();
  }
  void schedule(const std::string& step, int count) {
    for (int i = 0; i < count; ++i) coordinator_.schedule(step);
  }
  void kill(int worker) { mortal_worker(coordinator_, worker).kill(); }
  void restart(int worker) { mortal_worker(coordinator_, worker).restart(); }
  ~FaultToleranceTest() override { gate_.open(); }
};

TEST_F(FaultToleranceTest, WorkerRestartedBetweenSteps) {
  start();
  schedule("count", 2);
  coordinator_.join();
  kill(0);
  Clock::system().sleep_for(20ms);
  restart(0);
  schedule("count", 2);
  coordinator_.join();
  strategy_.expect_counted(4);
}

TEST_F(FaultToleranceTest, StepsInFlightOnAKilledWorkerCountOnce) {
  start();
  schedule("long", 4);
  gate_.expect_inside(4);
  kill(0);
  restart(0);
  gate_.open();
  coordinator_.join();
  // What the killed worker had runs on, as a thread must: as a process that is not quite dead.
  testing::expect_soon([&] { return strategy_.num_calls == 5; });
  strategy_.expect_counted(4);  // tf: 4 or more
}

TEST_F(FaultToleranceTest, WorkerLossDuringAUserError) {
  start();
  const RemoteValue endless = coordinator_.schedule("endless");
  gate_.expect_inside(1);
  kill(1);
  coordinator_.schedule("fail");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kOutOfRange, "",
                       [&] { coordinator_.join(); });
  EXPECT_ERROR(endless.fetch(), kCancelled, "please schedule it again");
  schedule("count", 3);  // the worker is still away
  coordinator_.join();
  strategy_.expect_counted(3);
}

TEST_F(FaultToleranceTest, TwoWorkersLostAtOnceAndOneLostTwice) {
  start();
  schedule("long", 10);
  gate_.expect_inside(4);
  kill(0), kill(1);
  restart(0), restart(1);
  gate_.expect_inside(6);
  kill(2);
  restart(2);
  gate_.expect_inside(7);
  gate_.open();
  coordinator_.join();
  EXPECT_EQ(internal::CoordinatorInside::closures(coordinator_).num_ended(), 10u);
  strategy_.expect_counted(10);
}

TEST_F(FaultToleranceTest, LosingTheSameWorkerTwiceFailsNoClosure) {
  start();
  for (int worker = 1; worker < 4; ++worker) kill(worker);
  coordinator_.schedule("long");
  gate_.expect_inside(1);
  for (int life = 0; life < 2; ++life) {
    kill(0);
    restart(0);
    gate_.expect_inside(2 + life);
  }
  gate_.open();
  coordinator_.join();
  strategy_.expect_counted(1);
}

TEST_F(FaultToleranceTest, ServerErrorIsReportedAsServerError) {
  start();
  strategy_.is_second_gone = true;
  expect_closure_error(ErrorOrigin::kServer, ErrorCode::kUnavailable,
                       "ps error: ps 1: does not answer", [&] {
                         schedule("count", 2);  // the second one may throw already
                         coordinator_.join();
                       });
}

TEST_F(FaultToleranceTest, ServerFailureDuringWorkerRecovery) {
  start();
  schedule("long", 4);
  gate_.expect_inside(4);
  kill(0);  // another worker gets its closure
  strategy_.is_second_gone = true;
  gate_.open();
  expect_closure_error(ErrorOrigin::kServer, ErrorCode::kUnavailable, "ps 1",
                       [&] { coordinator_.join(store_tests::soon()); });
  restart(0);
  strategy_.is_second_gone = false;
  schedule("count", 3);
  coordinator_.join();
  EXPECT_EQ(strategy_.counted(1), 3);
}

TEST(FaultTolerance, VariablesAreReadableWhileAWorkerRestarts) {
  const HangWatchdog watchdog("reads");
  ParameterServerOptions options;
  options.local.devices = "cpu:0";
  options.num_servers = options.num_workers = 2;
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  testing::MortalWorkers workers(strategy);
  ClusterCoordinator coordinator(workers);
  Gate gate;
  coordinator.define("count", [&] { count.assign_add(Tensor::scalar(1, DType::kInt64)); });
  coordinator.define("long", [&] { gate.pass(); });
  coordinator.start();
  for (int i = 0; i < 10; ++i) coordinator.schedule("count");
  coordinator.join();
  coordinator.schedule("long"), coordinator.schedule("long");
  gate.expect_inside(2);
  for (int i = 0; i < 200; ++i) {
    if (i == 50) mortal_worker(coordinator, 0).kill();
    if (i == 100) mortal_worker(coordinator, 0).restart();
    if (i == 120) gate.open();
    EXPECT_EQ(count.value().item_int(), 10);
  }
  coordinator.join();
  coordinator.schedule("count");
  coordinator.join();
  EXPECT_EQ(count.value().item_int(), 11);
}

TEST_F(FaultToleranceTest, DroppingTheCoordinatorEndsItsThreads) {
  const int before = num_running_threads();
  {
    CountingStrategy strategy(4);
    ClusterCoordinator coordinator(strategy);
    coordinator.define("endless", [] {
      while (!ClosureContext::current()->cancelled()) Clock::system().sleep_for(1ms);
    });
    coordinator.start();
    for (int i = 0; i < 20; ++i) coordinator.schedule("endless");
    EXPECT_GT(num_running_threads(), before);
  }
  EXPECT_EQ(num_running_threads(), before);
}

TEST_F(FaultToleranceTest, AClosureThatKillsWorkersFailsInsteadOfEatingAll) {
  start();
  const RemoteValue poison = coordinator_.schedule("long");
  for (int death = 1; death <= 2; ++death) {
    gate_.expect_inside(death);
    for (int worker = 0; worker < 4; ++worker) {
      if (internal::CoordinatorInside::worker(coordinator_, worker).doing() != "nothing" &&
          mortal_worker(coordinator_, worker).is_alive()) {
        kill(worker);
        break;
      }
    }
  }
  expect_closure_error(ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                       "2 different workers were lost", [&] { coordinator_.join(); });
  schedule("count", 2);
  coordinator_.join();
  gate_.open();
}

TEST_F(FaultToleranceTest, PerWorkerValuesAreMadeAnewAfterARestart) {
  std::atomic<int> num_made{0};
  coordinator_.define("use", [](const int& value) { return value; });
  const auto values = coordinator_.create_per_worker([&](int worker) {
    ++num_made;
    return worker;
  });
  start();
  const std::vector<Nest> first = coordinator_.run_on_each("use", values);
  EXPECT_EQ(num_made, 4);
  kill(3);
  EXPECT_TRUE(coordinator_.run_on_each("use", values)[3].is_nothing());
  restart(3);
  EXPECT_EQ(internal::from_nest<int>(coordinator_.run_on_each("use", values)[3], "value"), 3);
  EXPECT_EQ(num_made, 5);
}

TEST(FaultTolerance, WhenNobodyComesBackTheClosuresFail) {
  HangWatchdog watchdog("no worker");
  CountingStrategy strategy(2);
  testing::MortalWorkers workers(strategy);
  ClusterCoordinatorOptions options;
  options.most_absence = 40ms;
  ClusterCoordinator coordinator(workers, options);
  coordinator.define("count", [&] { strategy.count(); });
  coordinator.start();
  mortal_worker(coordinator, 0).kill(), mortal_worker(coordinator, 1).kill();
  coordinator.schedule("count");
  EXPECT_ERROR(coordinator.join(), kUnavailable, "worker error", "no worker was there for");
}

}  // namespace fault_tolerance_test
}  // namespace tutti
