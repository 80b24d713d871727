// Tests workers that die and restart while closures run, both in this process and over connections.
// Counts must be exact where TensorFlow's tests only assert >=.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/coordinator/remote_worker.h"
#include "strategy/parameter_server/coordinator/worker_message.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti {
namespace fault_tolerance_test {

using testing::CountingStrategy;
using testing::expect_closure_error;
using testing::expect_error;
using testing::expect_soon;
using testing::Gate;
using testing::HangWatchdog;
using testing::mortal_worker;
using namespace std::chrono_literals;

class FaultToleranceTest : public ::testing::Test {
 protected:
  HangWatchdog watchdog_{"workers that die", 60s};
  Gate gate_;  // must outlive the workers' threads
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

TEST_F(FaultToleranceTest, InFlightStepsOfKilledWorkerCountOnce) {
  start();
  schedule("long", 4);
  gate_.expect_inside(4);
  kill(0);
  restart(0);
  gate_.open();
  coordinator_.join();
  // The thread of a killed worker continues, like a process that is still exiting.
  expect_soon([&] { return strategy_.num_calls == 5; });
  strategy_.expect_counted(4);  // TensorFlow's test accepts 4 or more
}

TEST_F(FaultToleranceTest, UserErrorIsThrownDespiteWorkerLoss) {
  start();
  const RemoteValue endless = coordinator_.schedule("endless");
  gate_.expect_inside(1);
  kill(1);
  coordinator_.schedule("fail");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kOutOfRange, "",
                       [&] { coordinator_.join(); });
  EXPECT_ERROR(endless.fetch(), kCancelled, "please schedule it again");
  schedule("count", 3);  // worker 1 is still down
  coordinator_.join();
  strategy_.expect_counted(3);
}

TEST_F(FaultToleranceTest, EachClosureCountsOnceDespiteSeveralWorkerLosses) {
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
  EXPECT_EQ(internal::CoordinatorTestAccess::closures(coordinator_).num_ended(), 10u);
  strategy_.expect_counted(10);
}

TEST_F(FaultToleranceTest, ServerFailureDuringWorkerRecoveryIsThrown) {
  start();
  schedule("long", 4);
  gate_.expect_inside(4);
  kill(0);  // a different worker then gets worker 0's closure
  strategy_.is_second_gone = true;
  gate_.open();
  expect_closure_error(ErrorOrigin::kServer, ErrorCode::kUnavailable,
                       "ps error: ps 1: does not answer",
                       [&] { coordinator_.join(store_tests::soon()); });
  restart(0);
  strategy_.is_second_gone = false;
  schedule("count", 3);
  coordinator_.join();
  EXPECT_EQ(strategy_.counted(1), 3);
}

TEST(FaultTolerance, VariablesAreReadableDuringWorkerRestart) {
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

TEST_F(FaultToleranceTest, CoordinatorDestructorJoinsThreads) {
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

TEST_F(FaultToleranceTest, ClosureFailsAfterLosingFourWorkers) {
  start();
  for (int worker = 1; worker < 4; ++worker) kill(worker);
  const RemoteValue poison = coordinator_.schedule("long");
  for (int death = 1; death <= 4; ++death) {
    gate_.expect_inside(death);
    kill(0);
    restart(0);
  }
  expect_closure_error(ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                       "infrastructure ended 4 attempts", [&] { coordinator_.join(); });
  schedule("count", 2);
  coordinator_.join();
  gate_.open();
}

TEST_F(FaultToleranceTest, PerWorkerValuesAreRecreatedAfterRestart) {
  std::atomic<int> num_made{0};
  coordinator_.define("use", [](const int& value) { return value; });
  const auto values = coordinator_.create_per_worker([&](int worker) {
    ++num_made;
    return worker;
  });
  start();
  for (int worker = 0; worker < 3; ++worker) kill(worker);
  const auto use = [&] { return coordinator_.schedule("use", values).fetch<int>(); };
  EXPECT_EQ(use(), 3);
  EXPECT_EQ(use(), 3);
  EXPECT_EQ(num_made, 1);
  kill(3);
  restart(3);
  EXPECT_EQ(use(), 3);
  EXPECT_EQ(num_made, 2);
}

TEST(FaultTolerance, ClosuresFailWhenAllWorkersStayLost) {
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
  EXPECT_ERROR(coordinator.join(), kUnavailable, "worker error", "no worker was connected for");
}

TEST(FaultTolerance, AbsenceTimeoutStartsWhenLastWorkerIsLost) {
  HangWatchdog watchdog("absence after a long closure", 60s);
  Gate gate;
  CountingStrategy strategy(1);
  testing::MortalWorkers workers(strategy);
  ClusterCoordinatorOptions options;
  options.most_absence = 3s;
  ClusterCoordinator coordinator(workers, options);
  define_steps(coordinator, strategy, gate);
  coordinator.start();
  coordinator.schedule("long");
  gate.expect_inside(1);
  Clock::system().sleep_for(options.most_absence + 100ms);
  mortal_worker(coordinator, 0).kill();
  Clock::system().sleep_for(100ms);
  mortal_worker(coordinator, 0).restart();
  gate.open();
  coordinator.join();
  strategy.expect_counted(1);
}

/// Simulated process of a worker: a WorkerService that the coordinator reaches over RPC.
class WorkerProcess {
 public:
  WorkerProcess(int worker, std::uint64_t incarnation, const std::string& address,
                CountingStrategy& strategy, Gate& gate, const std::string& extra_step = "") {
    define_steps(registry_, strategy, gate);
    if (!extra_step.empty()) registry_.define(extra_step, [] {});
    service_ = std::make_unique<internal::WorkerService>(worker, strategy, registry_);
    RpcServerOptions options;
    options.address = address;
    options.self = {"worker", worker, address};
    options.incarnation = incarnation;
    options.job_id = "test";
    server_ = RpcServer::start(options, {{RpcMethod::kRun, service_.get()}});
  }
  std::string target() const { return server_->target(); }

 private:
  internal::StepRegistry registry_;
  std::unique_ptr<internal::WorkerService> service_;
  std::unique_ptr<RpcServer> server_;
};

class RemoteWorkerTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 2;

  std::string address(int worker) const {
    return concat("127.0.0.1:", ports_[static_cast<std::size_t>(worker)]);
  }
  void begin(int worker, const std::string& extra_step = "") {
    const auto w = static_cast<std::size_t>(worker);
    processes_[w] = std::make_unique<WorkerProcess>(worker, incarnations_[w]++, address(worker),
                                                    strategy_, gate_, extra_step);
  }
  void end(int worker) { processes_[static_cast<std::size_t>(worker)].reset(); }

  /// Strategy whose workers are reached over RPC.
  class Connected final : public CoordinatedStrategy {
   public:
    explicit Connected(RemoteWorkerTest& test) : test_(test) {}
    int num_workers() const override { return kWorkers; }
    void run_closure(const std::function<void()>&) override {
      fail(ErrorCode::kInternal, "a closure ran on the chief");
    }
    std::unique_ptr<internal::WorkerLink> connect_worker(
        int worker, internal::StepRegistry& registry) override {
      internal::RemoteWorkerOptions options;
      options.worker = worker;
      options.steps = [&registry] { return registry.text(); };
      options.when_lost = [this, worker](internal::RemoteWorkerOptions::Lost lost) {
        test_.lost_[static_cast<std::size_t>(worker)] = std::move(lost);
        return nullptr;
      };
      options.connect = [worker, target = "grpc://" + test_.address(worker)] {
        RpcClientOptions client;
        client.self = {"chief", 0, ""};
        client.server = {"worker", worker, ""};
        client.job_id = "test";
        client.connect_timeout = 50ms;
        return RpcClient::connect(target, RpcMethod::kRun, client);
      };
      return std::make_unique<internal::RemoteWorker>(std::move(options));
    }
    std::shared_ptr<void> when_over(std::function<void(const std::string&)> told) override {
      test_.over_ = std::move(told);
      return nullptr;
    }

   private:
    RemoteWorkerTest& test_;
  };

  void start(Duration join_timeout = 60s) {
    ClusterCoordinatorOptions options;
    options.join_timeout = join_timeout;
    coordinator_ = std::make_unique<ClusterCoordinator>(connected_, options);
    define_steps(*coordinator_, strategy_, gate_);
    coordinator_->start();
  }

  void start_both() {
    begin(0), begin(1);
    start();
  }
  void schedule(const std::string& step, int count) {
    for (int i = 0; i < count; ++i) coordinator_->schedule(step);
  }
  void run(const std::string& step, int count) {
    schedule(step, count);
    coordinator_->join();
  }
  internal::WorkerLink& link(int worker) {
    return internal::CoordinatorTestAccess::worker(*coordinator_, worker);
  }
  void wait_until_alive(int worker, bool is_alive) {
    SCOPED_TRACE(concat("worker ", worker));
    expect_soon([&] { return link(worker).is_alive() == is_alive; });
  }
  /// Reports the exit of a worker's process, as the control plane of a job would.
  void lose(int worker, std::uint64_t incarnation) {
    lost_[static_cast<std::size_t>(worker)](
        incarnation, Error(ErrorCode::kUnavailable, concat("worker ", worker, " died")));
  }

  HangWatchdog watchdog_{"remote workers", 60s};
  Gate gate_;
  CountingStrategy strategy_{kWorkers};
  Connected connected_{*this};
  const std::vector<int> ports_ = launch::free_ports(kWorkers);
  std::array<std::uint64_t, kWorkers> incarnations_{};
  std::array<std::unique_ptr<WorkerProcess>, kWorkers> processes_;
  std::array<internal::RemoteWorkerOptions::Lost, kWorkers> lost_;
  std::function<void(const std::string&)> over_;
  std::unique_ptr<ClusterCoordinator> coordinator_;
};

TEST_F(RemoteWorkerTest, RunsClosuresAndReturnsTheirResults) {
  start_both();
  schedule("count", 20);
  const Tensor large = Tensor::full({1000}, 2.5);
  const RemoteValue value = coordinator_->schedule("double", large);
  coordinator_->join();
  strategy_.expect_counted(20);
  for (const Tensor& each : value.fetch<std::vector<Tensor>>()) {
    testing::expect_same_bits(each, large);
  }
  coordinator_->schedule("fail");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kOutOfRange, "end of data",
                       [&] { coordinator_->join(); });
}

TEST_F(RemoteWorkerTest, LostWorkerIsReplacedAndItsClosuresCountOnce) {
  start_both();
  schedule("long", 6);
  gate_.expect_inside(2);
  gate_.open();  // the destructor of a worker waits for its thread
  end(0);
  coordinator_->join();
  begin(0);
  run("count", 6);
  strategy_.expect_counted(12);
}

TEST_F(RemoteWorkerTest, CancellationReachesWorker) {
  start_both();
  const RemoteValue endless = coordinator_->schedule("endless");
  gate_.expect_inside(1);
  coordinator_->schedule("fail");
  EXPECT_ERROR(coordinator_->join(), kOutOfRange, "end of data");
  EXPECT_ERROR(endless.fetch(), kCancelled, "please schedule it again");
}

TEST_F(RemoteWorkerTest, StartFailsIfWorkerDefinesDifferentSteps) {
  begin(0, "another"), begin(1);
  EXPECT_ERROR(start(), kFailedPrecondition, "ClusterCoordinator::start", "worker 0", "another(");
}

TEST_F(RemoteWorkerTest, RestartedWorkerWithDifferentStepsGetsNoClosures) {
  start_both();
  end(0);
  lose(0, 0);
  begin(0, "another");
  run("count", 10);
  strategy_.expect_counted(10);
  expect_soon([&] { return link(0).refusal().has_value(); });
  EXPECT_FALSE(link(0).is_alive());
  EXPECT_TRUE(link(1).is_alive());
}

TEST_F(RemoteWorkerTest, StartSucceedsIfSomeWorkersJoin) {
  begin(1);
  start(300ms);
  run("count", 10);
  strategy_.expect_counted(10);
  begin(0);
  wait_until_alive(0, true);
}

TEST_F(RemoteWorkerTest, StartErrorNamesMissingWorkers) {
  EXPECT_ERROR(start(200ms), kDeadlineExceeded, "no worker joined within", "worker 0", "worker 1",
               "check their logs");
}

/// Worker that leaves its tasks unanswered until release().
class KeepingWorker final : public RpcHandler {
 public:
  void take(std::shared_ptr<RpcCall> call) override {
    if (!internal::decode_worker_request(call->request()).message.has_run()) return call->reply({});
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(call));
  }
  void expect_tasks(std::size_t count) {
    expect_soon([&] {
      MutexLock lock(mutex_);
      return tasks_.size() == count;
    });
  }
  std::vector<std::shared_ptr<RpcCall>> release() {
    MutexLock lock(mutex_);
    return std::exchange(tasks_, {});
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<RpcCall>> tasks_ TUTTI_GUARDED_BY(mutex_);
};

/// The result does not depend on which waiting thread runs first.
TEST(RemoteWorker, WorkerLossIsAttributedToOldestUnansweredTask) {
  HangWatchdog watchdog("attributed losses", 60s);
  for (int i = 0; i < 12; ++i) {
    KeepingWorker worker;
    RpcServerOptions process;
    process.self = {"worker", 0, ""};
    auto server = RpcServer::start(process, {{RpcMethod::kRun, &worker}});
    internal::RemoteWorkerOptions options;
    options.steps = [] { return std::string(); };
    options.connect = [target = server->target()] {
      RpcClientOptions client;
      client.server = {"worker", 0, ""};
      client.connect_timeout = 50ms;
      return RpcClient::connect(target, RpcMethod::kRun, client);
    };
    internal::RemoteWorker link(options);
    expect_soon([&] { return link.doing() == "nothing"; });
    std::array<internal::TaskOutcome, 2> outcomes;
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::size_t t = 0; t < outcomes.size(); ++t) {
      threads.push_back(Executor::system().start("task", [&, t] {
        internal::WorkerTask task;
        task.closure = t;
        task.token = std::make_shared<CancellationToken>();
        outcomes[t] = link.run(task);
      }));
      worker.expect_tasks(t + 1);
    }
    worker.release().front()->reply(internal::encode(internal::TaskOutcome(Nest())));
    server.reset();
    threads.clear();  // waits for both calls
    // The reply and the disconnection arrive together, so the reply is sometimes lost.
    const bool was_answered = std::holds_alternative<Nest>(outcomes[0]);
    const auto& lost = std::get<internal::AttemptReport>(outcomes[was_answered ? 1 : 0]);
    EXPECT_EQ(lost.kind, internal::AttemptReport::Kind::kInterrupted);
  }
}

TEST_F(RemoteWorkerTest, BrokenConnectionOfIdleWorkerIsDetected) {
  start_both();
  end(0);
  wait_until_alive(0, false);
  begin(0);
  wait_until_alive(0, true);
  lose(0, 0);  // late report about the previous process
  gate_.open();
  run("long", 10);
  EXPECT_TRUE(link(0).is_alive());
  strategy_.expect_counted(10);
  EXPECT_EQ(strategy_.num_calls, 10);  // no closure was repeated
}

TEST_F(RemoteWorkerTest, JobEndFailsPendingCalls) {
  start_both();
  const RemoteValue endless = coordinator_->schedule("endless");
  gate_.expect_inside(1);
  over_("the job declared this process lost");
  EXPECT_ERROR(coordinator_->join(), kUnavailable, "join: the job declared this process lost");
  EXPECT_ERROR(coordinator_->schedule("count"), kUnavailable, "the job declared this process lost");
  EXPECT_ERROR(endless.fetch(), kCancelled, "the job declared this process lost");
}

TEST(WorkerMessage, RequestsAndOutcomesRoundTrip) {
  using namespace internal;
  std::vector<WorkerRequest> requests(4);
  requests[0].message.mutable_hello()->set_steps("train() -> nothing\n");
  requests[1].arguments = to_nest(std::vector<int>{7});
  requests[1].message.mutable_run()->set_step("train");
  requests[2].message.mutable_cancel()->set_task(9);
  put_handle({1, 2, "float", {}}, *requests[3].message.mutable_release()->mutable_handle());
  for (const WorkerRequest& request : requests) {
    const Packet packet = encode(request);
    EXPECT_EQ(encode(decode_worker_request(packet)).head, packet.head);
  }
  expect_error(ErrorCode::kDataLoss, {"a task with arguments"},
               [] { decode_worker_request(Packet()); });
  const std::vector<TaskOutcome> outcomes = {
      to_nest(1.5f), AttemptReport{AttemptReport::Kind::kStopped, 3, ErrorOrigin::kServer,
                                   ErrorCode::kAborted, "gone"}};
  for (const TaskOutcome& outcome : outcomes) {
    const Packet packet = encode(outcome);
    const TaskOutcome read = decode_outcome(packet);
    EXPECT_EQ(read.index(), outcome.index());
    EXPECT_EQ(encode(read).head, packet.head);
    for (std::size_t cut = 0; cut < packet.head.size(); ++cut) {
      Packet part;
      part.head.assign(packet.head.begin(), packet.head.begin() + static_cast<std::ptrdiff_t>(cut));
      expect_error(ErrorCode::kDataLoss, {}, [&] { decode_outcome(part); });
    }
  }
}

}  // namespace fault_tolerance_test
}  // namespace tutti
