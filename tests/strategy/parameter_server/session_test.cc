// Sessions with real clusters of servers in this process: placement, steps, transfers, errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session.h"

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tools/launch/job_plan.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/executor.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/session/server.h"
#include "tutti/strategy/parameter_server/session/task_optimizer.h"

namespace tutti {
namespace {
namespace session_tests {

using strategy_tests::error_of;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::expect_tensor;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr const char* kHello = "Hello, distributed TensorFlow!";

/// A server per task, each at a port of its own, with the same steps.
class SessionCluster {
 public:
  explicit SessionCluster(const std::map<std::string, int>& jobs, const TaskSteps& steps = {}) {
    int total = 0;
    for (const auto& [job, count] : jobs) total += count;
    std::vector<int> ports = launch::free_ports(total);
    ClusterSpec::Jobs tasks;
    for (const auto& [job, count] : jobs) {
      std::vector<std::string> addresses;
      for (int i = 0; i < count; ++i, ports.pop_back()) {
        addresses.push_back(concat("127.0.0.1:", ports.back()));
      }
      tasks.emplace(job, addresses);
    }
    const ClusterSpec cluster(std::move(tasks));
    for (const Task& task : cluster.tasks()) {
      servers_.push_back(
          std::make_unique<Server>(cluster, task.type, task.index, ServerOptions{.steps = steps}));
    }
  }
  std::size_t size() const { return servers_.size(); }
  Server& server(std::size_t index) { return *servers_[index]; }
  std::string target(std::size_t index = 0) const { return servers_[index]->target(); }
  void kill(std::size_t index) { servers_[index].reset(); }

 private:
  std::vector<std::unique_ptr<Server>> servers_;
};

std::string task_device(const std::string& job, int index) {
  return Task{job, index}.device_prefix();
}

/// What went between tasks: without the client.
std::vector<SessionTransfer> between_tasks(const Session& session) {
  std::vector<SessionTransfer> all = session.transfers();
  std::erase_if(all, [](const SessionTransfer& each) {
    return each.from == "client" || each.to == "client";
  });
  return all;
}

TaskSteps arithmetic() {
  TaskSteps steps;
  steps.define("add", [](const Tensor& a, const Tensor& b) { return a + b; });
  steps.define("two", [](const Tensor& a) { return std::vector<Tensor>{a, a * 2.0f}; });
  steps.define("length",
               [](const std::string& text) { return static_cast<std::int64_t>(text.size()); });
  steps.define("fail", [](double x) -> double {
    fail(ErrorCode::kInvalidArgument, "expected 0 or more, got ", x);
  });
  return steps;
}

TEST(SessionTest, RunsOnALocalServer) {
  const HangWatchdog watchdog("hello");
  const auto server = Server::create_local_server();
  Session session(server->target());
  const TaskValue hello = session.constant(kHello);
  EXPECT_EQ(hello.fetch<std::string>(), kHello);
  EXPECT_EQ(hello.device(), "/job:local/replica:0/task:0");
  EXPECT_THAT(session.list_devices(), ElementsAre("/job:local/replica:0/task:0/device:CPU:0"));
}

TEST(SessionTest, ServerEndsWithItsLastSession) {
  const HangWatchdog watchdog("join");
  const auto server = Server::create_local_server();
  const auto client = Executor::system().start("client", [target = server->target()] {
    Session session(target);
    EXPECT_EQ(session.constant(kHello).fetch<std::string>(), kHello);
  });
  server->join();
}

TEST(SessionTest, JobsMayHaveAnyName) {
  const HangWatchdog watchdog("job names");
  SessionCluster cluster({{"store", 1}, {"trainer", 2}}, arithmetic());
  Session session(cluster.target());
  EXPECT_EQ(session.cluster().jobs(), (std::vector<std::string>{"store", "trainer"}));
  const DeviceScope trainer("/job:trainer");
  EXPECT_EQ(session.run("length", "four").device(), task_device("trainer", 0));
  EXPECT_EQ(session.constant(4).device(), task_device("trainer", 0));
  const DeviceScope second("/task:1");
  const TaskValue length = session.run("length", "four");
  EXPECT_EQ(length.device(), task_device("trainer", 1));
  EXPECT_EQ(length.fetch<int>(), 4);
  const DeviceScope nowhere("/task:2");
  expect_error(ErrorCode::kInvalidArgument,
               {"Session::run: the device scope '/job:trainer/task:2' names no task",
                "/job:store/replica:0/task:0, /job:trainer/replica:0/task:0"},
               [&] { (void)session.run("length", "four"); });
}

TEST(SessionTest, TwoClientsOnTwoMastersOfOneCluster) {
  const HangWatchdog watchdog("two clients");
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, arithmetic());
  const auto add_up = [&](std::size_t server) {
    Session session(cluster.target(server));
    const Tensor zero = Tensor::zeros({2});
    const DeviceScope ps("/job:ps");
    TaskVariable sum = session.variable("sum", zero);
    const NoDeviceScope here;
    for (int i = 1; i <= 50; ++i) sum.assign_add(Tensor::full({2}, i));
    session.wait();
  };
  {
    const auto other = Executor::system().start("client", [&] { add_up(1); });
    add_up(2);
  }
  Session reader(cluster.target(0));
  TaskVariable sum = reader.variable("sum", Tensor::zeros({2}));
  EXPECT_EQ(sum.device(), task_device("ps", 0));
  expect_tensor(sum.read().fetch<Tensor>(), {2}, {2550, 2550});
}

TEST(SessionTest, EveryTaskListsTheDevicesOfAll) {
  const HangWatchdog watchdog("devices");
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    EXPECT_THAT(Session(cluster.target(i)).list_devices(),
                ElementsAre("/job:ps/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:1/device:CPU:0"));
  }
}

TEST(SessionTest, WrongPortIsUnavailableWithinTheDeadline) {
  const HangWatchdog watchdog("a wrong port");
  const std::string address = concat("127.0.0.1:", launch::free_ports(1).front());
  const std::string target = concat("grpc://", address);
  expect_error(ErrorCode::kUnavailable, {concat("Session(\"", target, "\")"), address, "0.4 s"},
               [&] { Session(target, {.connect_timeout = 400ms}); });
  expect_error(ErrorCode::kInvalidArgument, {"expected grpc://host:port"},
               [] { Session("worker7.example.com:2222"); });
}

TEST(SessionTest, AMissingTaskIsNamed) {
  const HangWatchdog watchdog("a missing task");
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  cluster.kill(2);
  expect_error(ErrorCode::kUnavailable, {"did not reach worker 1 (127.0.0.1:"},
               [&] { Session(cluster.target(), {.connect_timeout = 2s}); });
}

TEST(SessionTest, EachValueAndGradientIsTransferredOnce) {
  const HangWatchdog watchdog("transfers");
  TaskSteps steps;
  steps.define("gradient", [](const Tensor& w, double x) { return std::vector{w * x}; });
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, steps);
  Session session(cluster.target());
  const Tensor initial = Tensor::ones({4, 3});
  const DeviceScope ps("/job:ps");
  TaskVariable w = session.variable("w", initial);
  TaskOptimizer optimizer(session, {w}, std::make_shared<SgdRule>(), 0.5);
  for (int step = 1; step <= 3; ++step) {
    std::vector<TaskValue> gradients;
    for (const int worker : {0, 1}) {
      const DeviceScope scope(concat("/job:worker/task:", worker));
      (void)session.run("gradient", w, 7.0);  // the same value, and nobody needs what it gives
      gradients.push_back(session.run("gradient", w, 1.0));
    }
    optimizer.apply_gradients(gradients);
    session.wait();
    const auto n = static_cast<std::uint64_t>(step);
    EXPECT_THAT(
        between_tasks(session),
        ElementsAre(SessionTransfer{task_device("ps", 0), task_device("worker", 0), n, 48 * n},
                    SessionTransfer{task_device("ps", 0), task_device("worker", 1), n, 48 * n},
                    SessionTransfer{task_device("worker", 0), task_device("ps", 0), n, 48 * n},
                    SessionTransfer{task_device("worker", 1), task_device("ps", 0), n, 48 * n}));
  }
  // Two gradients of w, half of each: nothing is left after the first step.
  expect_tensor(w.read().fetch<Tensor>(), {4, 3}, std::vector<double>(12, 0.0));
}

/// x [rows, 4], y [rows, 3] of one step: numbers that no sum gives exactly.
std::pair<Tensor, Tensor> rows_of_step(int step, std::int64_t rows) {
  const auto key = [&](std::uint64_t what) {
    return RandomKey{5, kUserPurpose, static_cast<std::uint64_t>(step), what, 0};
  };
  return {random_normal({rows, 4}, key(0)), random_normal({rows, 3}, key(1))};
}

Tensor share_of_loss(const Tensor& w, const Tensor& b, const Tensor& x, const Tensor& y) {
  return reduce_sum(square(tanh(matmul(x, w) + b) - y)) / 12.0f;
}

struct Trained {
  std::vector<Tensor> values = {};
  std::vector<float> losses = {};
};

constexpr int kSteps = 6;

/// One process, as many replicas.
template <class Optimizer, class Options>
Trained train_mirrored(int replicas, const Options& options) {
  const auto strategy = strategy_tests::mirrored(1, replicas);
  const auto scope = strategy->scope();
  const std::vector<Variable> variables{
      Variable(random_normal({4, 3}, RandomKey{5, kUserPurpose, 100, 0, 0}), {.name = "w"}),
      Variable(random_normal({3}, RandomKey{5, kUserPurpose, 101, 0, 0}), {.name = "b"})};
  Optimizer optimizer(variables, options);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = rows_of_step(step, 12);
    const auto losses = strategy->run([&, x = x, y = y] {
      const std::int64_t rows = 12 / replicas;
      const std::int64_t first = ReplicaContext::current().replica_id() * rows;
      GradientTape tape;
      const Tensor loss = share_of_loss(variables[0].value(), variables[1].value(),
                                        x.detached_rows(first, rows), y.detached_rows(first, rows));
      optimizer.minimize(tape, loss);
      return loss;
    });
    trained.losses.push_back(strategy->reduce(ReduceOp::kSum, losses).item());
  }
  for (const Variable& each : variables) trained.values.push_back(each.value());
  const std::vector<Variable> state = optimizer.state_variables();
  for (std::size_t i = 2; i < state.size(); ++i) trained.values.push_back(state[i].value());
  return trained;
}

/// One client, one set of variables on ps, a copy of the step on each worker.
Trained train_in_graph(SessionCluster& cluster, int workers, int servers,
                       std::shared_ptr<const UpdateRule> rule, double learning_rate) {
  Session session(cluster.target());
  std::vector<TaskVariable> variables;
  const std::vector<std::pair<const char*, Tensor>> initial{
      {"w", random_normal({4, 3}, RandomKey{5, kUserPurpose, 100, 0, 0})},
      {"b", random_normal({3}, RandomKey{5, kUserPurpose, 101, 0, 0})}};
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const DeviceScope ps(concat("/job:ps/task:", static_cast<int>(i) % servers));
    variables.push_back(session.variable(initial[i].first, initial[i].second));
  }
  TaskOptimizer optimizer(session, variables, std::move(rule), learning_rate);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = rows_of_step(step, 12);
    std::vector<TaskValue> gradients, losses;
    for (int worker = 0; worker < workers; ++worker) {
      const std::int64_t rows = 12 / workers;
      const Tensor own_x = x.detached_rows(worker * rows, rows),
                   own_y = y.detached_rows(worker * rows, rows);
      const DeviceScope scope(concat("/job:worker/task:", worker));
      const TaskValue result = session.run("replica", variables[0], variables[1], own_x, own_y);
      gradients.push_back(result.element(0));
      losses.push_back(result.element(1));
    }
    optimizer.apply_gradients(gradients);
    std::vector<Tensor> values;
    for (const TaskValue& each : losses) values.push_back(each.fetch<Tensor>());
    PerReplica<Tensor> per_replica(std::move(values));
    trained.losses.push_back(
        strategy_tests::mirrored(1, workers)->reduce(ReduceOp::kSum, per_replica).item());
  }
  for (const TaskVariable& each : variables) trained.values.push_back(each.read().fetch<Tensor>());
  const auto& state = optimizer.state_variables();
  EXPECT_EQ(state[0].read().fetch<int>(), kSteps);
  for (std::size_t i = 1; i < state.size(); ++i) {
    trained.values.push_back(state[i].read().fetch<Tensor>());
  }
  return trained;
}

void expect_same_training(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_LT(got.losses.back(), got.losses.front());
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(got.values[i].bytes(), expected.values[i].bytes()))
        << "value " << i;
  }
}

TaskSteps with_replica_step() {
  TaskSteps steps;
  steps.define("replica", [](const Tensor& w, const Tensor& b, const Tensor& x, const Tensor& y) {
    GradientTape tape;
    tape.watch(w), tape.watch(b);
    const Tensor loss = share_of_loss(w, b, x, y);
    const std::vector<Tensor> sources{w, b};
    std::vector<Tensor> gradients;
    for (const Gradient& each : tape.gradient(loss, sources)) gradients.push_back(each.dense());
    return std::pair(gradients, loss);
  });
  return steps;
}

TEST(SessionTest, OneClientAndTwoWorkersHaveTheBitsOfOneProcess) {
  const HangWatchdog watchdog("in-graph replication", 60s);
  {
    SessionCluster cluster({{"ps", 1}, {"worker", 2}}, with_replica_step());
    expect_same_training(
        train_in_graph(cluster, 2, 1, std::make_shared<SgdRule>(0.9), 0.05),
        train_mirrored<Sgd>(2, SgdOptions{.learning_rate = 0.05, .momentum = 0.9}));
  }
  SessionCluster cluster({{"ps", 2}, {"worker", 3}}, with_replica_step());
  expect_same_training(train_in_graph(cluster, 3, 2, std::make_shared<AdamRule>(), 0.02),
                       train_mirrored<Adam>(3, AdamOptions{.learning_rate = 0.02}));
}

/// In-graph replicas without coordination: a loop per worker, on common variables.
TEST(SessionTest, AsynchronousReplicasLoseNoUpdate) {
  const HangWatchdog watchdog("asynchronous in-graph replication");
  constexpr int kUpdates = 60;
  TaskSteps steps;
  steps.define("ones", [](const Tensor& w) { return w * 0.0f + 1.0f; });
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, steps);
  Session session(cluster.target());
  std::optional<TaskVariable> w;
  const Tensor zeros = Tensor::zeros({5});
  {
    const DeviceScope ps("/job:ps");
    w = session.variable("w", zeros);
  }
  std::vector<std::unique_ptr<Thread>> replicas;
  for (const int worker : {0, 1}) {
    replicas.push_back(Executor::system().start(concat("replica ", worker), [&, worker] {
      const DeviceScope scope(concat("/job:worker/task:", worker));
      for (int i = 0; i < kUpdates; ++i) w->assign_sub(session.run("ones", *w));
    }));
  }
  replicas.clear();
  expect_tensor(w->read().fetch<Tensor>(), {5}, std::vector<double>(5, -2.0 * kUpdates));
  session.wait();
}

TEST(SessionTest, NextClientContinuesTheOptimizer) {
  const HangWatchdog watchdog("a second client");
  SessionCluster cluster({{"ps", 1}, {"worker", 1}}, with_replica_step());
  const auto rule = std::make_shared<SgdRule>(0.9);
  const Tensor initial = Tensor::ones({2});
  for (const int round : {0, 1, 2}) {
    Session session(cluster.target());
    TaskVariable w = session.variable("w", initial);
    TaskOptimizer optimizer(session, {w}, rule, 1.0);
    EXPECT_EQ(optimizer.iterations(), round);
    optimizer.apply_gradients(std::vector{session.constant(std::vector{Tensor::full({2}, 1.0)})});
    // v = 0.9 v - 1, w += v: 1 - 1, - 1.9, - 2.71.
    const double expected[] = {0.0, -1.9, -4.61};
    EXPECT_NEAR(w.read().fetch<Tensor>().to_doubles()[0], expected[round], 1e-6);
  }
}

TEST(SessionTest, ValuesGoFromWorkerToWorkerAndArePartedThere) {
  const HangWatchdog watchdog("worker to worker");
  SessionCluster cluster({{"worker", 2}}, arithmetic());
  Session session(cluster.target());
  const Tensor ones = Tensor::ones({8});
  std::optional<TaskValue> both;
  {
    const DeviceScope first("/job:worker/task:0");
    both = session.run("two", ones);
  }
  const DeviceScope second("/job:worker/task:1");
  const TaskValue sum = session.run("add", both->element(1), both->element(1));
  const TaskValue more = session.run("add", sum, both->element(1));
  expect_tensor(more.fetch<Tensor>(), {8}, std::vector<double>(8, 6.0));
  EXPECT_THAT(
      between_tasks(session),
      ElementsAre(SessionTransfer{task_device("worker", 0), task_device("worker", 1), 1, 32}));
}

TEST(SessionTest, ReadsAreOfTheirPlaceInTheProgram) {
  const HangWatchdog watchdog("program order");
  SessionCluster cluster({{"ps", 1}, {"worker", 1}}, arithmetic());
  Session session(cluster.target());
  TaskVariable v = session.variable("v", Tensor(1.0f));
  const TaskValue before = v.read();
  v.assign(Tensor(5.0f));
  const TaskValue after = v.read();
  v.assign_add(after), v.assign_sub(Tensor(1.0f));
  EXPECT_EQ(before.fetch<float>(), 1.0f);
  EXPECT_EQ(after.fetch<float>(), 5.0f);
  EXPECT_EQ(v.read().fetch<float>(), 9.0f);
  expect_error(ErrorCode::kAlreadyExists, {"'v' was made in this session before"},
               [&] { (void)session.variable("v", Tensor(1.0f)); });
}

TEST(SessionTest, ErrorsNameTaskAndStepAndReachWhatDependsOnThem) {
  const HangWatchdog watchdog("errors");
  SessionCluster cluster({{"worker", 2}}, arithmetic());
  Session session(cluster.target());
  const DeviceScope second("/job:worker/task:1");
  const TaskValue bad = session.run("fail", -2.0);
  std::optional<TaskValue> depends;
  {
    const DeviceScope first("/job:worker/task:0");
    depends = session.run("add", bad, bad);
  }
  const char* const why = "worker 1: step 'fail': expected 0 or more, got -2";
  expect_error(ErrorCode::kInvalidArgument, {why}, [&] { (void)bad.fetch(); });
  expect_error(ErrorCode::kInvalidArgument, {"worker 0: step 'add'", why},
               [&] { (void)depends->fetch(); });
  expect_error(ErrorCode::kInvalidArgument, {why}, [&] { session.wait(); });
  session.wait();  // each is told once
  expect_error(ErrorCode::kNotFound, {"worker 1: step 'ad'", "the nearest of 4 names: add"},
               [&] { (void)session.run("ad", 1.0).fetch(); });
  expect_error(ErrorCode::kInvalidArgument, {"expected 2 arguments"},
               [&] { (void)session.run("add", 1.0).fetch(); });
  expect_error(ErrorCode::kInvalidArgument, {"element 2 of", "there is none"},
               [&] { (void)session.run("two", 1.0f).element(2).fetch(); });
  Session other(cluster.target());
  const TaskValue foreign = other.constant(1.0);
  expect_error(ErrorCode::kInvalidArgument, {"a value of another session"},
               [&] { (void)session.run("fail", foreign); });
  EXPECT_EQ(session.run("length", "fine").fetch<int>(), 4);
  EXPECT_THAT(session.steps_of({"worker", 1}), HasSubstr("add(Tensor, Tensor) -> Tensor"));
}

TEST(SessionTest, ADeadTaskIsNamed) {
  const HangWatchdog watchdog("a dead task", 60s);
  SessionCluster cluster({{"worker", 2}}, arithmetic());
  Session session(cluster.target(0), {.timeout = 10s});
  std::optional<TaskValue> there;
  {
    const DeviceScope second("/job:worker/task:1");
    there = session.constant(1.0f);
    session.wait();
  }
  cluster.kill(1);
  const Error direct = error_of([&] { (void)there->fetch(); });
  EXPECT_EQ(direct.code(), ErrorCode::kUnavailable) << direct.message();
  EXPECT_THAT(direct.message(), HasSubstr("worker 1"));
  const Error by_other = error_of([&] { (void)session.run("two", *there).fetch(); });
  EXPECT_THAT(by_other.message(), HasSubstr("worker 1 (127.0.0.1:"));
}

TEST(SessionTest, StepsRunOnTheDeviceOfTheScope) {
  const HangWatchdog watchdog("devices of steps");
  TaskSteps steps;
  steps.define("where", [] { return Tensor::zeros({1}).device().to_string(); });
  SessionCluster cluster({{"worker", 1}}, steps);
  Session session(cluster.target());
  EXPECT_EQ(session.run("where").fetch<std::string>(), "cpu:0");
  const DeviceScope scope("/job:worker/task:0/device:CPU:3");
  EXPECT_EQ(session.run("where").fetch<std::string>(), "cpu:3");
}

}  // namespace session_tests
}  // namespace
}  // namespace tutti
