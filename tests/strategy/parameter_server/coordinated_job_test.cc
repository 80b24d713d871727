// A whole job with a coordinator on real connections, its tasks threads of this process.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/job.h"

#include <memory>
#include <optional>
#include <stdexcept>

#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tools/launch/job_plan.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::coordinated_job_tests {

using internal::ParameterServerJob;
using strategy_tests::num;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;

std::vector<std::string> local_addresses(std::vector<int>& ports, int count) {
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    addresses.push_back(concat("127.0.0.1:", ports.back()));
    ports.pop_back();
  }
  return addresses;
}

ClusterSpec coordinated_cluster(int workers, int servers) {
  std::vector<int> ports = launch::free_ports(1 + workers + servers);
  return ClusterSpec({{"chief", local_addresses(ports, 1)},
                      {"worker", local_addresses(ports, workers)},
                      {"ps", local_addresses(ports, servers)}});
}

StaticResolver task_resolver(const ClusterSpec& cluster, const std::string& type, int index) {
  return StaticResolver(cluster, {.task_type = type, .task_id = index, .rpc_layer = "grpc"});
}

WorkerGroupOptions patient_group() {
  WorkerGroupOptions group;
  group.join_timeout = 60s;
  return group;
}

ParameterServerOptions coordinated_options() {
  ParameterServerOptions options;
  options.local = strategy_tests::on_cpus(1);
  options.cluster = patient_group();
  options.coordinated = true;
  return options;
}

/// A worker whose closures add 1 to "total", which is on ps 0.
class CountingWorker final : public CoordinatedStrategy {
 public:
  explicit CountingWorker(ParameterServerJob& job) : job_(job) {}
  int num_workers() const override { return job_.num_workers(); }
  std::string worker_name(int worker) const override { return job_.worker_name(worker); }
  void run_closure(const std::function<void()>& body) override { body(); }
  void count() {
    const ClosureContext& closure = *ClosureContext::current();
    internal::OperationBatch batch;
    batch.stream = {internal::UpdateStream::Kind::kClosure, closure.id(), 0};
    batch.run = closure.run();
    batch.finished_below = closure.finished_below();
    batch.operations = {internal::AssignShard{internal::ShardSpec{"total", DType::kInt64, {}}.id(),
                                              AssignOp::kAdd, Tensor::scalar(1, DType::kInt64)}};
    (void)job_.servers().front()->start(std::move(batch))->wait(TimePoint::max());
  }

 private:
  ParameterServerJob& job_;
};

/// Runs a worker or server until the chief is done; its exit code.
class ServingTask {
 public:
  ServingTask(const ClusterSpec& cluster, const std::string& type, int index)
      : thread_(Executor::system().start(concat(type, " ", index), [this, cluster, type, index] {
          try {
            serve(task_resolver(cluster, type, index));
          } catch (const std::exception& error) {
            ADD_FAILURE() << type << " " << index << ": " << error.what();
          }
        })) {}
  int exit_code() {
    thread_->join();
    return code_;
  }

 private:
  void serve(const StaticResolver& resolver) {
    ParameterServerJob job(resolver, coordinated_options());
    CountingWorker strategy(job);
    internal::StepRegistry registry;
    registry.define("count", [&strategy] { strategy.count(); });
    code_ = job.serve(strategy, registry);
  }
  int code_ = -1;
  std::unique_ptr<Thread> thread_;
};

/// The chief's program: counts closures, and fails at the end when it is asked to.
std::int64_t run_chief(const ClusterSpec& cluster, int closures, bool fails) {
  ParameterServerStrategy strategy(task_resolver(cluster, "chief", 0), coordinated_options());
  EXPECT_TRUE(strategy.is_chief());
  const auto scope = strategy.scope();
  const Variable total(Tensor::scalar(0, DType::kInt64), {.name = "total"});
  ClusterCoordinator coordinator(strategy);
  coordinator.define("count", [] { fail(ErrorCode::kInternal, "a closure ran on the chief"); });
  coordinator.start();
  for (int i = 0; i < closures; ++i) coordinator.schedule("count");
  coordinator.join();
  if (fails) throw std::runtime_error("asked to fail");
  return total.value().item_int();
}

TEST(CoordinatedJob, CountsAndEndsAllTasksWell) {
  const HangWatchdog watchdog("a job with a coordinator", 60s);
  const ClusterSpec cluster = coordinated_cluster(2, 2);
  std::vector<std::unique_ptr<ServingTask>> tasks;
  for (int i = 0; i < 2; ++i) {
    tasks.push_back(std::make_unique<ServingTask>(cluster, "worker", i));
    tasks.push_back(std::make_unique<ServingTask>(cluster, "ps", i));
  }
  EXPECT_EQ(run_chief(cluster, 50, false), 50);
  for (const auto& task : tasks) EXPECT_EQ(task->exit_code(), 0);
}

TEST(CoordinatedJob, AChiefThatFailsIsNoGoodEnd) {
  const HangWatchdog watchdog("a chief that fails", 60s);
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTask worker(cluster, "worker", 0), server(cluster, "ps", 0);
  EXPECT_THROW(run_chief(cluster, 3, true), std::runtime_error);
  EXPECT_EQ(worker.exit_code(), 1);
  EXPECT_EQ(server.exit_code(), 1);
}

TEST(CoordinatedJob, TheChiefIsWarnedOfWorkingAlone) {
  const HangWatchdog watchdog("a chief that works", 60s);
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTask worker(cluster, "worker", 0), server(cluster, "ps", 0);
  int warnings = 0;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    const bool is_it = line.find("run() outside a closure") != line.npos;
    if (level == LogLevel::kWarning && is_it) ++warnings;
  });
  {
    ParameterServerStrategy strategy(task_resolver(cluster, "chief", 0), coordinated_options());
    ClusterCoordinator coordinator(strategy);
    coordinator.define("count", [] {});
    coordinator.start();
    for (int i = 0; i < 2; ++i) strategy.run([] {});
  }
  EXPECT_EQ(worker.exit_code(), 0);
  EXPECT_EQ(server.exit_code(), 0);
  set_log_sink(before);
  EXPECT_EQ(warnings, 1);
}

/// A step outside closures has no id, so that its changes could not be told from repeated ones.
TEST(CoordinatedJob, StepOnEachWorkerChangesNoVariable) {
  const HangWatchdog watchdog("a step on each worker", 60s);
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTask server(cluster, "ps", 0);
  const auto run_task = [&](const std::string& type) -> std::optional<int> {
    ParameterServerStrategy strategy(task_resolver(cluster, type, 0), coordinated_options());
    const auto scope = strategy.scope();
    Variable total(Tensor::scalar(0, DType::kInt64), {.name = "total"});
    ClusterCoordinator coordinator(strategy);
    coordinator.define("read", [&] { return total.value().item_int(); });
    coordinator.define("count", [&] { total.assign_add(Tensor::scalar(1, DType::kInt64)); });
    if (const auto code = coordinator.serve()) return code;
    coordinator.start();
    (void)coordinator.schedule("count");
    coordinator.join();
    EXPECT_EQ(internal::from_nest<std::int64_t>(coordinator.run_on_each("read")[0], "read"), 1);
    EXPECT_ERROR(coordinator.run_on_each("count"), kFailedPrecondition,
                 "a variable is changed outside a closure", "run_on_each()", "schedule()");
    EXPECT_EQ(total.value().item_int(), 1);
    return std::nullopt;
  };
  std::optional<int> worker_code;
  const auto worker = Executor::system().start("worker", [&] { worker_code = run_task("worker"); });
  EXPECT_EQ(run_task("chief"), std::nullopt);
  worker->join();
  EXPECT_EQ(worker_code, 0);
  EXPECT_EQ(server.exit_code(), 0);
}

TEST(CoordinatedJob, WithoutChiefNobodyCoordinates) {
  const ClusterSpec cluster({{"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}});
  expect_error(ErrorCode::kInvalidArgument, {"expected a chief", "tutti run --chief"}, [&] {
    ParameterServerJob(task_resolver(cluster, "worker", 0), coordinated_options());
  });
}

TEST(CoordinatedJob, InvalidClusterIsRefused) {
  const auto expect_refused = [](const ClusterSpec::Jobs& jobs, const std::string& type,
                                 const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] {
      ParameterServerStrategy(task_resolver(ClusterSpec(jobs), type, 0), coordinated_options());
    });
  };
  const ClusterSpec::Jobs good = {
      {"chief", {"127.0.0.1:1"}}, {"worker", {"127.0.0.1:2"}}, {"ps", {"127.0.0.1:3"}}};
  ClusterSpec::Jobs jobs = good;
  jobs.emplace("foobar", JobTasks{"127.0.0.1:4"});
  expect_refused(jobs, "worker",
                 {"cluster.foobar", "one of chief, worker, ps, evaluator", "\"foobar\""});
  expect_refused(good, "foobar",
                 {"task.type", "one of chief, worker, ps, evaluator", "\"foobar\""});
  jobs = good;
  jobs["chief"] = {"127.0.0.1:1", "127.0.0.1:4"};
  expect_refused(jobs, "worker", {"cluster.chief", "at most one chief"});
  jobs = good;
  jobs.erase("worker");
  expect_refused(jobs, "chief", {"there must be at least one worker"});
  jobs = good;
  jobs.erase("ps");
  expect_refused(jobs, "chief", {"there must be at least one ps"});
  jobs = good;
  jobs["ps"] = JobTasks();
  expect_refused(jobs, "chief", {"there must be at least one ps"});
}

TEST(CoordinatedJob, AWorkerChangesNothingBeforeItServes) {
  const HangWatchdog watchdog("a worker's set-up", 60s);
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTask server(cluster, "ps", 0);
  // The others wait for the chief, which leaves when the worker has seen enough.
  Event is_over;
  const auto chief = Executor::system().start("chief", [&] {
    const ParameterServerStrategy own(task_resolver(cluster, "chief", 0), coordinated_options());
    is_over.wait_until(TimePoint::max());
  });
  ParameterServerStrategy strategy(task_resolver(cluster, "worker", 0), coordinated_options());
  EXPECT_FALSE(strategy.is_chief());
  const auto scope = strategy.scope();
  Variable v(num(1.0), {.name = "v"});
  EXPECT_EQ(v.value().item(), 1.0F);
  expect_error(ErrorCode::kFailedPrecondition,
               {"worker 0: a variable is changed", "ClusterCoordinator::serve"},
               [&] { v.assign(num(2.0)); });
  expect_error(ErrorCode::kFailedPrecondition,
               {"works for a chief elsewhere", "if (const auto code = coordinator.serve())"},
               [&] { ClusterCoordinator(strategy).start(); });
  expect_error(ErrorCode::kFailedPrecondition, {"worker 0: run()"}, [&] { strategy.run([] {}); });
  EXPECT_EQ(v.value().item(), 1.0F);
  is_over.set();
  EXPECT_EQ(server.exit_code(), 0);
}

TEST(ServerConnections, WhatTheJobLearnsEndsWaitingForAServer) {
  const HangWatchdog watchdog("a server that does not come", 60s);
  std::vector<int> ports = launch::free_ports(2);
  const ClusterSpec cluster(
      {{"worker", local_addresses(ports, 1)}, {"ps", local_addresses(ports, 1)}});
  WorkerGroupOptions group;
  group.join_timeout = std::chrono::hours(1);
  ServerOptions options;
  internal::ServerConnections connections;
  const auto job = Executor::system().start(
      "job", [&] { connections.fail_all(Error(ErrorCode::kUnavailable, "ps 0 died")); });
  expect_error(ErrorCode::kUnavailable, {"ps 0 died"}, [&] {
    connections.connect(cluster, Task{"worker", 0}, group, options);
  });
}

/// The program goes on after it; nothing ends the process.
TEST(CoordinatedJob, TasksThatDoNotTrainReturnToTheirProgram) {
  const HangWatchdog watchdog("serving without a coordinator", 60s);
  std::vector<int> ports = launch::free_ports(3);
  const ClusterSpec cluster({{"chief", local_addresses(ports, 1)},
                             {"worker", local_addresses(ports, 1)},
                             {"ps", local_addresses(ports, 1)}});
  ParameterServerOptions options = coordinated_options();
  options.coordinated = false;
  std::optional<int> server_code, chief_code, worker_code = 7;
  {
    const auto run_task = [&](const std::string& type, std::optional<int>& code) {
      ParameterServerStrategy strategy(task_resolver(cluster, type, 0), options);
      expect_error(ErrorCode::kFailedPrecondition,
                   {concat("run() on ", type, " 0"), "if (const auto code = strategy.serve())"},
                   [&] { strategy.run([] {}); });
      code = strategy.serve();
    };
    const auto server = Executor::system().start("ps", [&] { run_task("ps", server_code); });
    run_task("chief", chief_code);
    ParameterServerStrategy strategy(task_resolver(cluster, "worker", 0), options);
    worker_code = strategy.serve();
    const auto scope = strategy.scope();
    Variable v(num(1.0), {.name = "v"});
    strategy.run([&] { v.assign(num(2.0)); });
    EXPECT_EQ(v.value().item(), 2.0F);
  }
  EXPECT_EQ(server_code, 0);
  EXPECT_EQ(chief_code, 0);
  EXPECT_EQ(worker_code, std::nullopt);
}

TEST(CoordinatedJob, ASynchronousJobHasNoCoordinator) {
  const HangWatchdog watchdog("a synchronous job", 60s);
  std::vector<int> ports = launch::free_ports(2);
  const ClusterSpec cluster(
      {{"worker", local_addresses(ports, 1)}, {"ps", local_addresses(ports, 1)}});
  const Server server(cluster, "ps", 0);
  ParameterServerOptions options = coordinated_options();
  options.coordinated = false;
  ParameterServerStrategy strategy(task_resolver(cluster, "worker", 0), options);
  expect_error(ErrorCode::kFailedPrecondition, {"coordinated = true", "on every task"},
               [&] { ClusterCoordinator coordinator(strategy); });
}

TEST(CoordinatedJob, SumsOfClosuresCountOnceAlsoOnRead) {
  const HangWatchdog watchdog("ON_READ variables of closures");
  ParameterServerOptions options = coordinated_options();
  options.local = strategy_tests::on_cpus(2);
  options.num_workers = 3;
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  Variable sum(num(0.0), {.name = "sum",
                          .synchronization = VariableSynchronization::kOnRead,
                          .aggregation = VariableAggregation::kSum});
  EXPECT_FALSE(sum.trainable());
  EXPECT_EQ(strategy.shards_of(sum).size(), 1U);  // on a server
  ClusterCoordinator coordinator(strategy);
  coordinator.define("add", [&](double value) {
    strategy.run([&] { sum.assign_add(num(value)); });  // on each of two replicas
  });
  coordinator.start();
  for (int i = 1; i <= 20; ++i) coordinator.schedule("add", static_cast<double>(i));
  coordinator.join();
  EXPECT_EQ(sum.value().item(), 2.0F * 210.0F);
  sum.assign(num(0.0));
  EXPECT_EQ(sum.value().item(), 0.0F);
}

}  // namespace tutti::coordinated_job_tests
