// Sessions and servers: one task alone, clusters of servers in this process, killed tasks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session.h"

#include <iostream>

#include "strategy/parameter_server/session/task_session.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/multi_process_runner.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/resolver_registry.h"
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
using testing::MultiProcessRunner;
using ::testing::Not;
using namespace std::chrono_literals;

/// Ends a test whose tasks wait indefinitely.
class SessionTest : public ::testing::Test {
  const HangWatchdog watchdog_{"a session", 100s};
};
using TaskSession = SessionTest;
using SessionLosses = SessionTest;

ClusterSpec local_cluster() {
  return ClusterSpec({{"ps", {"127.0.0.1:0", "127.0.0.1:0"}}, {"worker", {"127.0.0.1:0"}}});
}

TEST(Server, TaskAndProtocolComeFromTheResolver) {
  const Server server(
      StaticResolver(local_cluster(), {.task_type = "ps", .task_id = 1, .rpc_layer = "grpc"}));
  EXPECT_EQ(server.task().to_string(), "ps 1");
  EXPECT_THAT(server.target(), ::testing::StartsWith("grpc://127.0.0.1:"));
  EXPECT_EQ(server.cluster(), local_cluster());
}

TEST(Server, ResolverWithoutTaskIsRefused) {
  EXPECT_ERROR(Server{StaticResolver(local_cluster())}, kInvalidArgument, "does not say which task",
               "task_type");
  EXPECT_ERROR((Server{StaticResolver(local_cluster(), {.task_type = "ps", .task_id = 2})}),
               kNotFound, "2");
}

/// A request that is answered here.
class HeldCall final : public RpcCall {
 public:
  const RpcPeer& peer() const override { return peer_; }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    answer_ = std::move(answer);
    done_.set();
  }
  void fail(const Error& error) override {
    error_ = error;
    done_.set();
  }
  Packet answer() {
    EXPECT_TRUE(done_.wait_until(deadline_after(Clock::system().now(), 60s)));
    if (error_) throw *error_;
    return answer_;
  }

 private:
  RpcPeer peer_{{"client", 0, ""}, 0, 7, "here"};
  Packet request_;
  Packet answer_;
  std::optional<Error> error_;
  Event done_;
};

TEST_F(TaskSession, RepeatedOperationsRunOnceAndReleasedValuesAreDropped) {
  using internal::TaskRequest;
  using internal::TaskRequestKind;
  std::atomic<int> num_runs = 0;
  TaskSteps steps;
  steps.define("count", [&num_runs] { return ++num_runs; });
  internal::VariableStore store("worker 0");
  const internal::TaskParts parts{{"worker", 0}, store, steps.registry(), {}};
  internal::TaskSession session(parts, 3, 10s);
  const auto request = [](TaskRequestKind kind, std::uint64_t op) {
    TaskRequest made{kind, 3, op, "count"};
    if (kind != TaskRequestKind::kRun) made.arguments.push_back({{{"worker", 0}, op}, {}});
    return internal::decode_task_request(internal::encode(made));
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const std::uint64_t op : {1, 2}) {
      const auto call = std::make_shared<HeldCall>();
      session.post(request(TaskRequestKind::kRun, op), call);
      EXPECT_TRUE(call->answer().head.empty());
    }
  }
  EXPECT_EQ(num_runs, 2);
  const auto fetched = std::make_shared<HeldCall>();
  session.fetch(request(TaskRequestKind::kFetch, 2), fetched);
  EXPECT_EQ(internal::from_nest<int>(internal::decode_nest(fetched->answer()), "fetched"), 2);
  EXPECT_EQ(session.num_held(), 2u);
  session.release(request(TaskRequestKind::kRelease, 1));
  EXPECT_EQ(session.num_held(), 1u);
  const auto unheard = std::make_shared<HeldCall>();
  session.fetch(request(TaskRequestKind::kFetch, 9), unheard);
  session.end();
  EXPECT_ERROR((void)unheard->answer(), kCancelled, "worker 0: the session has ended");
}

TEST_F(TaskSession, MalformedRequestsAreRefused) {
  using internal::TaskRequest;
  TaskRequest request{internal::TaskRequestKind::kRun, 3, 1, "step", "/device:CPU:1"};
  request.arguments.push_back({{{"worker", 1}, 4, {0, 2}}, {}});
  request.arguments.push_back({{}, Nest(Tensor::ones({100}))});
  Packet packet = internal::encode(request);
  const TaskRequest same = internal::decode_task_request(packet);
  EXPECT_EQ(same.arguments[0].from, request.arguments[0].from);
  EXPECT_EQ(same.device, request.device);
  expect_tensor(*same.arguments[1].value.tensor(), {100}, std::vector<double>(100, 1.0));
  packet.head.push_back(std::byte{0});
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "no such message");
  packet.head.resize(packet.head.size() / 2);
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "");
  packet = internal::encode(request);
  packet.payload.push_back(packet.payload.front());
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "bytes more");
  // Messages by hand: of no kind, an argument that is neither a value nor somewhere, none at all.
  const auto refused = [](std::vector<int> message, const std::string& part) {
    Packet made;
    for (const int each : message) made.head.push_back(static_cast<std::byte>(each));
    EXPECT_ERROR((void)internal::decode_task_request(made), kDataLoss, part);
  };
  refused({0x08, 11}, "11 names nothing");
  refused({0x08, 2, 0x32, 0}, "a value or where it is");
  refused({0x08, 1}, "without arguments");
}

constexpr const char* kHello = "Hello, distributed TensorFlow!";

/// A server per task, each at a port of its own, with the same steps.
class SessionCluster {
 public:
  explicit SessionCluster(const std::map<std::string, int>& jobs, const TaskSteps& steps = {}) {
    const ClusterSpec cluster = testing::local_cluster(jobs);
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

TaskVariable variable_on(const std::string& device, Session& session, const std::string& name,
                         const Tensor& initial) {
  const DeviceScope scope(device);
  return session.variable(name, initial);
}

template <class... Args>
TaskValue run_on(const std::string& device, Session& session, const std::string& step,
                 const Args&... args) {
  const DeviceScope scope(device);
  return session.run(step, args...);
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

TEST_F(SessionTest, RunsOnALocalServer) {
  const auto server = Server::create_local_server();
  Session session(server->target());
  const TaskValue hello = session.constant(kHello);
  EXPECT_EQ(hello.fetch<std::string>(), kHello);
  EXPECT_EQ(hello.device(), "/job:local/replica:0/task:0");
  EXPECT_THAT(session.list_devices(), ElementsAre("/job:local/replica:0/task:0/device:CPU:0"));
}

TEST_F(SessionTest, ServerEndsWithItsLastSession) {
  const auto server = Server::create_local_server();
  const auto client = Executor::system().start("client", [target = server->target()] {
    Session session(target);
    EXPECT_EQ(session.constant(kHello).fetch<std::string>(), kHello);
  });
  server->join();
}

TEST_F(SessionTest, JobsMayHaveAnyName) {
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
  EXPECT_ERROR((void)session.run("length", "four"), kInvalidArgument,
               "Session::run: the device scope '/job:trainer/task:2' names no task",
               "/job:store/replica:0/task:0, /job:trainer/replica:0/task:0");
}

TEST_F(SessionTest, TwoClientsOnTwoMastersOfOneCluster) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, arithmetic());
  const auto add_up = [&](std::size_t server) {
    Session session(cluster.target(server));
    TaskVariable sum = variable_on("/job:ps", session, "sum", Tensor::zeros({2}));
    for (int i = 1; i <= 50; ++i) sum.assign_add(Tensor::full({2}, i));
    session.wait();
  };
  expect_on_ranks(2, [&](int client) { add_up(static_cast<std::size_t>(client) + 1); });
  Session reader(cluster.target(0));
  TaskVariable sum = reader.variable("sum", Tensor::zeros({2}));
  EXPECT_EQ(sum.device(), task_device("ps", 0));
  expect_tensor(sum.read().fetch<Tensor>(), {2}, {2550, 2550});
}

TEST_F(SessionTest, EveryTaskListsTheDevicesOfAll) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    EXPECT_THAT(Session(cluster.target(i)).list_devices(),
                ElementsAre("/job:ps/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:1/device:CPU:0"));
  }
}

TEST_F(SessionTest, WrongPortIsUnavailableWithinTheDeadline) {
  const std::string address = concat("127.0.0.1:", launch::free_ports(1).front());
  const std::string target = concat("grpc://", address);
  EXPECT_ERROR(Session(target, {.connect_timeout = 400ms}), kUnavailable,
               concat("Session(\"", target, "\")"), address, "0.4 s");
  EXPECT_ERROR(Session("worker7.example.com:2222"), kInvalidArgument, "expected grpc://host:port");
}

TEST_F(SessionTest, MissingTaskIsNamed) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  cluster.kill(2);
  EXPECT_ERROR(Session(cluster.target(), {.connect_timeout = 2s}), kUnavailable,
               "did not reach worker 1 (127.0.0.1:");
}

TEST_F(SessionTest, EachValueAndGradientIsTransferredOnce) {
  TaskSteps steps;
  steps.define("gradient", [](const Tensor& w, double x) { return std::vector{w * x}; });
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, steps);
  Session session(cluster.target());
  TaskVariable w = variable_on("/job:ps", session, "w", Tensor::ones({4, 3}));
  TaskOptimizer optimizer(session, {w}, std::make_shared<SgdRule>(), 0.5);
  for (int step = 1; step <= 3; ++step) {
    std::vector<TaskValue> gradients;
    for (const int worker : {0, 1}) {
      const DeviceScope scope(concat("/job:worker/task:", worker));
      (void)session.run("gradient", w, 7.0);  // the same value of w; its result is not used
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

TEST_F(SessionTest, OneClientAndTwoWorkersHaveTheBitsOfOneProcess) {
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
TEST_F(SessionTest, AsynchronousReplicasLoseNoUpdate) {
  constexpr int kUpdates = 60;
  TaskSteps steps;
  steps.define("ones", [](const Tensor& w) { return w * 0.0f + 1.0f; });
  SessionCluster cluster({{"ps", 1}, {"worker", 2}}, steps);
  Session session(cluster.target());
  TaskVariable w = variable_on("/job:ps", session, "w", Tensor::zeros({5}));
  expect_on_ranks(2, [&](int worker) {
    const DeviceScope scope(concat("/job:worker/task:", worker));
    for (int i = 0; i < kUpdates; ++i) w.assign_sub(session.run("ones", w));
  });
  expect_tensor(w.read().fetch<Tensor>(), {5}, std::vector<double>(5, -2.0 * kUpdates));
  session.wait();
}

TEST_F(SessionTest, NextClientContinuesTheOptimizer) {
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

TEST_F(SessionTest, ValuesAreSentBetweenWorkersAndSplitThere) {
  SessionCluster cluster({{"worker", 2}}, arithmetic());
  Session session(cluster.target());
  const Tensor ones = Tensor::ones({8});
  const TaskValue both = run_on("/job:worker/task:0", session, "two", ones);
  const DeviceScope second("/job:worker/task:1");
  const TaskValue sum = session.run("add", both.element(1), both.element(1));
  const TaskValue more = session.run("add", sum, both.element(1));
  expect_tensor(more.fetch<Tensor>(), {8}, std::vector<double>(8, 6.0));
  EXPECT_THAT(
      between_tasks(session),
      ElementsAre(SessionTransfer{task_device("worker", 0), task_device("worker", 1), 1, 32}));
}

TEST_F(SessionTest, ReadsFollowProgramOrder) {
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
  EXPECT_ERROR((void)session.variable("v", Tensor(1.0f)), kAlreadyExists,
               "'v' was made in this session before");
}

TEST_F(SessionTest, ErrorsNameTaskAndStepAndReachDependentValues) {
  SessionCluster cluster({{"worker", 2}}, arithmetic());
  Session session(cluster.target());
  const DeviceScope second("/job:worker/task:1");
  const TaskValue bad = session.run("fail", -2.0);
  const TaskValue depends = run_on("/job:worker/task:0", session, "add", bad, bad);
  const char* const why = "worker 1: step 'fail': expected 0 or more, got -2";
  EXPECT_ERROR((void)bad.fetch(), kInvalidArgument, why);
  EXPECT_ERROR((void)depends.fetch(), kInvalidArgument, "worker 0: step 'add'", why);
  EXPECT_ERROR(session.wait(), kInvalidArgument, why);
  session.wait();  // each is told once
  EXPECT_ERROR((void)session.run("ad", 1.0).fetch(), kNotFound, "worker 1: step 'ad'",
               "the nearest of 4 names: add");
  EXPECT_ERROR((void)session.run("add", 1.0).fetch(), kInvalidArgument, "expected 2 arguments");
  EXPECT_ERROR((void)session.run("two", 1.0f).element(2).fetch(), kInvalidArgument, "element 2 of",
               "there is none");
  Session other(cluster.target());
  const TaskValue foreign = other.constant(1.0);
  EXPECT_ERROR((void)session.run("fail", foreign), kInvalidArgument, "a value of another session");
  EXPECT_EQ(session.run("length", "fine").fetch<int>(), 4);
  EXPECT_THAT(session.steps_of({"worker", 1}), HasSubstr("add(Tensor, Tensor) -> Tensor"));
}

TEST_F(SessionTest, DeadTaskIsNamed) {
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

TEST_F(SessionTest, StepsRunOnTheDeviceOfTheScope) {
  TaskSteps steps;
  steps.define("where", [] { return Tensor::zeros({1}).device().to_string(); });
  SessionCluster cluster({{"worker", 1}}, steps);
  Session session(cluster.target());
  EXPECT_EQ(session.run("where").fetch<std::string>(), "cpu:0");
  const DeviceScope scope("/job:worker/task:0/device:CPU:3");
  EXPECT_EQ(session.run("where").fetch<std::string>(), "cpu:3");
}

TUTTI_PROCESS_FUNCTION(serve_sessions) {
  ServerOptions options;
  options.steps.define("add", [](const Tensor& a, const Tensor& b) { return a + b; });
  const ClusterSpec cluster = resolver_from_environment()->cluster_spec();
  const launch::Task self = testing::this_process();
  Server server(cluster, self.type, self.index, options);
  std::cout << "serving, life " << testing::num_restarts() << std::endl;
  server.join();
  return Json("served");
}

/// Two workers and a server, as processes.
class ServedCluster {
 public:
  ServedCluster() : runner_("serve_sessions", {.num_workers = 2, .num_ps = 1}) {
    runner_.start();
    for (const auto& [job, index] : {std::pair("worker", 0), {"worker", 1}, {"ps", 0}}) {
      runner_.wait_for_line(job, index, "serving, life 0");
    }
  }
  std::string target() const { return concat("grpc://", runner_.address("worker", 0)); }
  void start_ps_again() {
    runner_.start_single_process("ps", 0);
    runner_.wait_for_line("ps", 0, "serving, life 1");
  }
  MultiProcessRunner& runner() { return runner_; }

 private:
  MultiProcessRunner runner_;
};

TEST_F(SessionLosses, KilledTaskIsNamedWithItsVariablesAndNewSessionContinues) {
  ServedCluster cluster;
  {
    Session session(cluster.target(), {.timeout = 20s});
    TaskVariable kept = variable_on("/job:worker/task:1", session, "kept", Tensor::full({2}, 1.0));
    TaskVariable lost = variable_on("/job:ps/task:0", session, "lost", Tensor::full({2}, 10.0));
    kept.assign_add(Tensor::full({2}, 5.0));
    expect_tensor(session.run("add", kept, lost).fetch<Tensor>(), {2}, {16.0, 16.0});
    cluster.runner().terminate("ps", 0);
    lost.assign_add(Tensor::full({2}, 1.0));
    const Error error = error_of([&] { (void)lost.read().fetch(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(), HasSubstr(concat("ps 0 (", cluster.runner().address("ps", 0))));
    EXPECT_THAT(error.message(), HasSubstr("and with it its values and the variables 'lost'"));
    EXPECT_THAT(error.message(), Not(HasSubstr("'kept'")));
    EXPECT_THAT(error.message(), HasSubstr("try a new Session"));
    // By way of a task that lives; and what needs nothing of it goes on.
    EXPECT_THAT(error_of([&] { (void)session.run("add", kept, lost).fetch(); }).message(),
                HasSubstr("the variables 'lost'"));
    expect_tensor(kept.read().fetch<Tensor>(), {2}, {6.0, 6.0});
    EXPECT_THROW(session.wait(), Error);
  }
  // Its end is not that of the servers.
  cluster.start_ps_again();
  {
    Session session(cluster.target(), {.timeout = 20s});
    TaskVariable kept = variable_on("/job:worker/task:1", session, "kept", Tensor::full({2}, -1.0));
    TaskVariable lost = variable_on("/job:ps/task:0", session, "lost", Tensor::full({2}, 20.0));
    expect_tensor(kept.read().fetch<Tensor>(), {2}, {6.0, 6.0});
    expect_tensor(lost.read().fetch<Tensor>(), {2}, {20.0, 20.0});
    expect_tensor(session.run("add", kept, lost).fetch<Tensor>(), {2}, {26.0, 26.0});
    session.wait();
  }
  const auto& result = cluster.runner().join();  // now it is
  EXPECT_EQ(result.return_values, (std::vector<Json>(3, Json("served"))));
}

TEST_F(SessionLosses, RestartedTaskIsAnotherTask) {
  ServedCluster cluster;
  Session session(cluster.target(), {.timeout = 20s});
  TaskVariable lost = variable_on("/job:ps/task:0", session, "lost", Tensor::full({2}, 10.0));
  expect_tensor(lost.read().fetch<Tensor>(), {2}, {10.0, 10.0});
  cluster.runner().terminate("ps", 0);
  cluster.start_ps_again();
  lost.assign_add(Tensor::full({2}, 1.0));
  const Error error = error_of([&] { (void)lost.read().fetch(); });
  EXPECT_THAT(error.message(), HasSubstr("and with it its values and the variables 'lost'"));
  EXPECT_TRUE(error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kUnavailable)
      << error.message();
  Session next(cluster.target(), {.timeout = 20s});
  const TaskVariable made = variable_on("/job:ps/task:0", next, "lost", Tensor::full({2}, 3.0));
  expect_tensor(made.read().fetch<Tensor>(), {2}, {3.0, 3.0});
}

/// Errors of steps are none of connections, whatever their code.
TEST_F(SessionLosses, ErrorOfAStepIsNotAttributedToTheConnection) {
  ServerOptions options;
  options.steps.define("refuse", [] { fail(ErrorCode::kUnavailable, "no more bread"); });
  const auto server = Server::create_local_server(options);
  Session session(server->target());
  const Error error = error_of([&] { (void)session.run("refuse").fetch(); });
  EXPECT_THAT(error.message(), HasSubstr("no more bread"));
  EXPECT_THAT(error.message(), Not(HasSubstr("new Session")));
  EXPECT_THROW(session.wait(), Error);
}

}  // namespace session_tests
}  // namespace
}  // namespace tutti
