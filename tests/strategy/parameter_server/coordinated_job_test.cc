// Tests a complete job with a coordinator over real connections; its tasks are threads of this
// process.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/job.h"

#include <memory>
#include <optional>
#include <stdexcept>

#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::coordinated_job_tests {

using internal::ParameterServerJob;
using strategy_tests::num;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;

/// Fixture that ends a test whose tasks wait indefinitely.
class CoordinatedJob : public ::testing::Test {
  const HangWatchdog watchdog_{"a job with a coordinator"};
};
using ServerConnections = CoordinatedJob;

ClusterSpec coordinated_cluster(int workers, int servers) {
  return testing::local_cluster({{"chief", 1}, {"worker", workers}, {"ps", servers}});
}

StaticResolver task_resolver(const ClusterSpec& cluster, const std::string& type, int index) {
  return StaticResolver(cluster, {.task_type = type, .task_id = index, .rpc_layer = "grpc"});
}

ParameterServerOptions job_options(bool is_coordinated = true) {
  ParameterServerOptions options;
  options.local = strategy_tests::on_cpus(1);
  options.cluster.join_timeout = 60s;
  options.coordinated = is_coordinated;
  return options;
}

/// Worker whose closures add 1 to "total" on ps 0.
class CountingWorker final : public CoordinatedStrategy {
 public:
  explicit CountingWorker(ParameterServerJob& job) : job_(job) {}
  int num_workers() const override { return job_.num_workers(); }
  std::string worker_name(int worker) const override { return job_.worker_name(worker); }
  void run_closure(const std::function<void()>& body) override { body(); }
  void count() {
    const ClosureContext& closure = *ClosureContext::current();
    store_tests::Client client(*job_.servers().front(), closure.id(),
                               internal::UpdateStream::Kind::kClosure);
    client.run = closure.run();
    client.call({internal::AssignShard{store_tests::whole("total", {}, DType::kInt64).id(),
                                       AssignOp::kAdd, Tensor::scalar(1, DType::kInt64)}});
  }

 private:
  ParameterServerJob& job_;
};

/// Worker or server that serves until the chief finishes.
class ServingTask {
 public:
  ServingTask(const ClusterSpec& cluster, const Task& task)
      : thread_(Executor::system().start(task.to_string(), [this, cluster, task] {
          try {
            ParameterServerJob job(task_resolver(cluster, task.type, task.index), job_options());
            CountingWorker strategy(job);
            internal::StepRegistry registry;
            registry.define("count", [&strategy] { strategy.count(); });
            code_ = job.serve(strategy, registry);
          } catch (const std::exception& error) {
            ADD_FAILURE() << task.to_string() << ": " << error.what();
          }
        })) {}
  void expect_exit_code(int code) {
    thread_->join();
    EXPECT_EQ(code_, code);
  }

 private:
  int code_ = -1;
  std::unique_ptr<Thread> thread_;
};

/// All workers and servers of a cluster.
class ServingTasks {
 public:
  explicit ServingTasks(const ClusterSpec& cluster) {
    for (const Task& task : cluster.tasks()) {
      if (task.type != "chief") tasks_.push_back(std::make_unique<ServingTask>(cluster, task));
    }
  }
  void expect_exit_codes(int code) {
    for (const auto& task : tasks_) task->expect_exit_code(code);
  }

 private:
  std::vector<std::unique_ptr<ServingTask>> tasks_;
};

/// Runs the chief's program, which counts closures and, if `fails`, throws at the end. Returns the
/// count.
std::int64_t run_chief(const ClusterSpec& cluster, int closures, bool fails) {
  ParameterServerStrategy strategy(task_resolver(cluster, "chief", 0), job_options());
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

TEST_F(CoordinatedJob, FinishedChiefEndsAllTasksSuccessfully) {
  const ClusterSpec cluster = coordinated_cluster(2, 2);
  ServingTasks tasks(cluster);
  EXPECT_EQ(run_chief(cluster, 50, false), 50);
  tasks.expect_exit_codes(0);
}

TEST_F(CoordinatedJob, FailedChiefFailsAllTasks) {
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTasks tasks(cluster);
  EXPECT_THROW(run_chief(cluster, 3, true), std::runtime_error);
  tasks.expect_exit_codes(1);
}

TEST_F(CoordinatedJob, RunOutsideClosureWarnsOnce) {
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTasks tasks(cluster);
  const auto warnings = thrown::warnings_of([&] {
    ParameterServerStrategy strategy(task_resolver(cluster, "chief", 0), job_options());
    ClusterCoordinator coordinator(strategy);
    coordinator.define("count", [] {});
    coordinator.start();
    for (int i = 0; i < 2; ++i) strategy.run([] {});
  });
  tasks.expect_exit_codes(0);
  EXPECT_THAT(warnings,
              ::testing::Contains(::testing::HasSubstr("run() outside a closure")).Times(1));
}

TEST_F(CoordinatedJob, ClusterWithoutChiefIsRejected) {
  const ClusterSpec cluster({{"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}});
  EXPECT_ERROR(ParameterServerJob(task_resolver(cluster, "worker", 0), job_options()),
               kInvalidArgument, "expected a chief", "tutti run --chief");
}

TEST_F(CoordinatedJob, InvalidClusterIsRejected) {
  const auto expect_refused = [](const ClusterSpec::Jobs& jobs, const std::string& type,
                                 const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] {
      ParameterServerStrategy(task_resolver(ClusterSpec(jobs), type, 0), job_options());
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
  expect_refused(jobs, "chief", {"expected at least one worker"});
  jobs = good;
  jobs.erase("ps");
  expect_refused(jobs, "chief", {"expected at least one ps"});
  jobs = good;
  jobs["ps"] = JobTasks();
  expect_refused(jobs, "chief", {"expected at least one ps"});
}

TEST_F(CoordinatedJob, WorkerCannotChangeVariablesBeforeServing) {
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  ServingTask server(cluster, {"ps", 0});
  // The server and the worker wait for the chief, which stays in the job until the worker has
  // finished.
  Event is_over;
  const auto chief = Executor::system().start("chief", [&] {
    const ParameterServerStrategy own(task_resolver(cluster, "chief", 0), job_options());
    is_over.wait_until(TimePoint::max());
  });
  ParameterServerStrategy strategy(task_resolver(cluster, "worker", 0), job_options());
  EXPECT_FALSE(strategy.is_chief());
  const auto scope = strategy.scope();
  Variable v(num(1.0), {.name = "v"});
  EXPECT_EQ(v.value().item(), 1.0F);
  EXPECT_ERROR(v.assign(num(2.0)), kFailedPrecondition, "worker 0: a variable was changed",
               "ClusterCoordinator::serve");
  EXPECT_ERROR(ClusterCoordinator(strategy).start(), kFailedPrecondition,
               "the chief of this task is another process",
               "if (const auto code = coordinator.serve())");
  EXPECT_ERROR(strategy.run([] {}), kFailedPrecondition, "worker 0: run()");
  EXPECT_EQ(v.value().item(), 1.0F);
  is_over.set();
  server.expect_exit_code(0);
}

TEST_F(ServerConnections, JobFailureAbortsConnect) {
  const ClusterSpec cluster = testing::local_cluster({{"worker", 1}, {"ps", 1}});
  WorkerGroupOptions group;
  group.join_timeout = std::chrono::hours(1);
  ServerOptions options;
  internal::ServerConnections connections;
  const auto job = Executor::system().start(
      "job", [&] { connections.fail_all(Error(ErrorCode::kUnavailable, "ps 0 died")); });
  EXPECT_ERROR(connections.connect(cluster, Task{"worker", 0}, group, options), kUnavailable,
               "ps 0 died");
}

/// serve() returns 0 on the chief and the server, and nullopt on the worker, which trains.
TEST_F(CoordinatedJob, ServeReturnsExitCodeOnNonTrainingTasks) {
  const ClusterSpec cluster = coordinated_cluster(1, 1);
  const ParameterServerOptions options = job_options(false);
  std::optional<int> server_code, chief_code, worker_code = 7;
  {
    const auto run_task = [&](const std::string& type, std::optional<int>& code) {
      ParameterServerStrategy strategy(task_resolver(cluster, type, 0), options);
      EXPECT_ERROR(strategy.run([] {}), kFailedPrecondition,
                   concat("run() was called on ", type, " 0"),
                   "if (const auto code = strategy.serve())");
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

TEST_F(CoordinatedJob, SynchronousJobRejectsCoordinator) {
  const ClusterSpec cluster = testing::local_cluster({{"worker", 1}, {"ps", 1}});
  const Server server(cluster, "ps", 0);
  const ParameterServerOptions options = job_options(false);
  ParameterServerStrategy strategy(task_resolver(cluster, "worker", 0), options);
  EXPECT_ERROR(ClusterCoordinator coordinator(strategy), kFailedPrecondition, "coordinated = true",
               "on every task");
}

TEST_F(CoordinatedJob, SumOnReadVariableCountsEachClosureOnce) {
  ParameterServerOptions options = job_options();
  options.local = strategy_tests::on_cpus(2);
  options.num_workers = 3;
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  Variable sum(num(0.0), {.name = "sum",
                          .synchronization = VariableSynchronization::kOnRead,
                          .aggregation = VariableAggregation::kSum});
  EXPECT_FALSE(sum.trainable());
  EXPECT_EQ(strategy.shards_of(sum).size(), 1U);  // the variable is on a server
  ClusterCoordinator coordinator(strategy);
  coordinator.define("add", [&](double value) {
    strategy.run([&] { sum.assign_add(num(value)); });  // runs on each of two replicas
  });
  coordinator.start();
  for (int i = 1; i <= 20; ++i) coordinator.schedule("add", static_cast<double>(i));
  coordinator.join();
  EXPECT_EQ(sum.value().item(), 2.0F * 210.0F);
  sum.assign(num(0.0));
  EXPECT_EQ(sum.value().item(), 0.0F);
}

}  // namespace tutti::coordinated_job_tests
