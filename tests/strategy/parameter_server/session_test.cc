// Tests sessions and servers: one task alone, clusters of servers in this process, and killed
// tasks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session.h"

#include <fstream>
#include <iostream>

#include "tensor/step_hooks.h"
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

/// Fixture that ends a test whose tasks wait indefinitely.
class SessionTest : public ::testing::Test {
  const HangWatchdog watchdog_{"a session", 100s};
};
using SessionFailures = SessionTest;

ClusterSpec local_cluster() {
  return ClusterSpec({{"ps", {"127.0.0.1:0", "127.0.0.1:0"}}, {"worker", {"127.0.0.1:0"}}});
}

TEST(Server, TaskAndProtocolAreReadFromResolver) {
  const Server server(
      StaticResolver(local_cluster(), {.task_type = "ps", .task_id = 1, .rpc_layer = "grpc"}));
  EXPECT_EQ(server.task().to_string(), "ps 1");
  EXPECT_THAT(server.target(), ::testing::StartsWith("grpc://127.0.0.1:"));
  EXPECT_EQ(server.cluster(), local_cluster());
}

TEST(Server, ResolverWithoutTaskIsRejected) {
  EXPECT_ERROR(Server{StaticResolver(local_cluster())}, kInvalidArgument, "does not name the task",
               "task_type");
  EXPECT_ERROR((Server{StaticResolver(local_cluster(), {.task_type = "ps", .task_id = 2})}),
               kNotFound, "2");
}

/// Cluster with one server per task, each on a separate port.
class SessionCluster {
 public:
  explicit SessionCluster(const std::map<std::string, int>& jobs) {
    const ClusterSpec cluster = testing::local_cluster(jobs);
    for (const Task& task : cluster.tasks()) {
      servers_.push_back(std::make_unique<Server>(cluster, task.type, task.index));
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

Variable variable_on(const std::string& device, const std::string& name, const Tensor& initial) {
  const DeviceScope scope(device);
  return Variable(initial, {.name = name});
}

/// Returns 2 * value, computed on `device`.
Tensor doubled_on(const std::string& device, const Tensor& value) {
  const DeviceScope scope(device);
  return value + value;
}

/// Returns the traffic between tasks; the client's transfers are excluded.
std::vector<SessionTransfer> between_tasks(const Session& session) {
  std::vector<SessionTransfer> all = session.transfers();
  std::erase_if(all, [](const SessionTransfer& each) {
    return each.from == "client" || each.to == "client";
  });
  return all;
}

/// Returns the bytes sent between the client and the tasks.
std::uint64_t client_bytes(const Session& session) {
  std::uint64_t bytes = 0;
  for (const SessionTransfer& each : session.transfers()) {
    if (each.from == "client" || each.to == "client") bytes += each.bytes;
  }
  return bytes;
}

TEST_F(SessionTest, ComputesOnLocalServer) {
  const auto server = Server::create_local_server();
  Session session(server->target());
  const auto scope = session.scope();
  const DeviceScope task("/job:local/task:0");
  const Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  expect_tensor(matmul(a, a), {2, 2}, {7, 10, 15, 22});
  EXPECT_THAT(session.list_devices(), ElementsAre("/job:local/replica:0/task:0/device:CPU:0"));
}

TEST_F(SessionTest, ServerExitsAfterLastSession) {
  const auto server = Server::create_local_server();
  const auto client = Executor::system().start("client", [target = server->target()] {
    Session session(target);
    const auto scope = session.scope();
    EXPECT_EQ(doubled_on("/job:local", Tensor(4.0f)).item(), 8.0f);
  });
  server->join();
}

TEST_F(SessionTest, RemoteDeviceRequiresSession) {
  const DeviceScope task("/job:worker/task:1");
  EXPECT_ERROR((void)Tensor::ones({2}), kUnavailable, "'/job:worker/task:1' is in another process",
               "a Session that reaches the task", "session.scope()");
  const Tensor here = Tensor::ones({2}, DType::kFloat32, Device{});
  EXPECT_ERROR((void)(here + here), kUnavailable, "add at session_test.cc:", "Session");
  EXPECT_ERROR((void)Variable(here), kUnavailable, "Session");
}

TEST_F(SessionTest, JobsMayHaveAnyName) {
  SessionCluster cluster({{"store", 1}, {"trainer", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  EXPECT_EQ(session.cluster().jobs(), (std::vector<std::string>{"store", "trainer"}));
  const DeviceScope trainer("/job:trainer");
  const Tensor first = Tensor(1.0f) + 1.0f;
  const DeviceScope second("/task:1");
  EXPECT_EQ((first + 1.0f).item(), 3.0f);
  EXPECT_THAT(between_tasks(session),
              ElementsAre(SessionTransfer{task_device("trainer", 0), task_device("trainer", 1), 1,
                                          sizeof(float)}));
  const DeviceScope nowhere("/task:2");
  EXPECT_ERROR((void)(first + 1.0f), kInvalidArgument,
               "Session: the device scope '/job:trainer/task:2' does not name a task",
               "/job:store/replica:0/task:0, /job:trainer/replica:0/task:0");
}

TEST_F(SessionTest, ClientsOnDifferentMastersShareVariables) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  const auto add_up = [&](std::size_t server) {
    Session session(cluster.target(server));
    const auto scope = session.scope();
    Variable sum = variable_on("/job:ps", "sum", Tensor::zeros({2}));
    for (int i = 1; i <= 50; ++i) sum.assign_add(Tensor::full({2}, i));
  };
  expect_on_ranks(2, [&](int client) { add_up(static_cast<std::size_t>(client) + 1); });
  Session reader(cluster.target(0));
  const auto scope = reader.scope();
  const Variable sum = variable_on("/job:ps", "sum", Tensor::zeros({2}));
  expect_tensor(sum.value(), {2}, {2550, 2550});
  EXPECT_ERROR((void)variable_on("/job:ps", "sum", Tensor::zeros({2})), kAlreadyExists,
               "'sum' already exists in this session");
  Session other(cluster.target(0));
  const auto inner = other.scope();
  EXPECT_ERROR((void)variable_on("/job:ps", "sum", Tensor::zeros({3})), kInvalidArgument,
               "expected float32 [3], but the variable exists as float32 [2]");
}

TEST_F(SessionTest, EveryTaskListsAllClusterDevices) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    EXPECT_THAT(Session(cluster.target(i)).list_devices(),
                ElementsAre("/job:ps/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:0/device:CPU:0",
                            "/job:worker/replica:0/task:1/device:CPU:0"));
  }
}

TEST_F(SessionTest, ConnectingToWrongPortFailsWithinTimeout) {
  const std::string address = concat("127.0.0.1:", launch::free_ports(1).front());
  const std::string target = concat("grpc://", address);
  EXPECT_ERROR(Session(target, {.connect_timeout = 400ms}), kUnavailable,
               concat("Session(\"", target, "\")"), address, "0.4 s");
  EXPECT_ERROR(Session("worker7.example.com:2222"), kInvalidArgument,
               "expected a target grpc://host:port");
}

TEST_F(SessionTest, ConnectErrorNamesMissingTask) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  cluster.kill(2);
  EXPECT_ERROR(Session(cluster.target(), {.connect_timeout = 2s}), kUnavailable,
               "did not reach worker 1 (127.0.0.1:");
}

/// In each step, each of the two workers fetches w once and sends one gradient to the task that
/// stores w.
TEST_F(SessionTest, EachValueAndGradientIsTransferredOnce) {
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  const std::vector<Variable> w = {variable_on("/job:ps", "w", Tensor::ones({4, 3}))};
  Sgd optimizer(w, {.learning_rate = 0.5});
  std::vector<std::uint64_t> bytes = {client_bytes(session)};
  for (std::uint64_t step = 1; step <= 3; ++step) {
    session.run([&] {
      std::vector<std::vector<Gradient>> gradients;
      for (const int worker : {0, 1}) {
        const DeviceScope task(concat("/job:worker/task:", worker));
        GradientTape tape;
        const Tensor twice = reduce_sum(w[0].value() * 7.0f) - reduce_sum(w[0].value() * 6.0f);
        gradients.push_back(tape.gradient(twice, w));
      }
      optimizer.apply_gradients(sum_over_replicas(w, gradients));
    });
    EXPECT_THAT(
        between_tasks(session),
        ElementsAre(
            SessionTransfer{task_device("ps", 0), task_device("worker", 0), step, 48 * step},
            SessionTransfer{task_device("ps", 0), task_device("worker", 1), step, 48 * step},
            SessionTransfer{task_device("worker", 0), task_device("ps", 0), step, 48 * step},
            SessionTransfer{task_device("worker", 1), task_device("ps", 0), step, 48 * step}));
    bytes.push_back(client_bytes(session));
  }
  // After the programs are sent, a step sends only numbers. Each worker gets the factors 7 and 6,
  // the gradient of the sum and that gradient's sign; ps gets the scalars of the update. Neither w
  // nor a gradient is sent to the client.
  EXPECT_EQ(bytes[2] - bytes[1], 2 * 4 * sizeof(float) + 4 * sizeof(double));
  EXPECT_EQ(bytes[3] - bytes[2], bytes[2] - bytes[1]);
  EXPECT_GT(bytes[1] - bytes[0], bytes[2] - bytes[1]);
  // Each of the three steps subtracts 0.5 * 1 for each of two workers: 1 - 3 = -2.
  expect_tensor(w[0].value(), {4, 3}, std::vector<double>(12, -2.0));
}

/// Returns the inputs of one step, x [rows, 4] and y [rows, 3]. Sums of their elements cannot be
/// represented exactly.
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

/// Trains in one process under MirroredStrategy.
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

/// Trains with one client, variables on ps, and a replica of the computation on each worker.
template <class Optimizer, class Options>
Trained train_in_graph(SessionCluster& cluster, int workers, int servers, const Options& options) {
  Session session(cluster.target());
  const auto scope = session.scope();
  std::vector<Variable> variables;
  const std::vector<std::pair<const char*, Tensor>> initial{
      {"w", random_normal({4, 3}, RandomKey{5, kUserPurpose, 100, 0, 0})},
      {"b", random_normal({3}, RandomKey{5, kUserPurpose, 101, 0, 0})}};
  for (std::size_t i = 0; i < initial.size(); ++i) {
    variables.push_back(variable_on(concat("/job:ps/task:", static_cast<int>(i) % servers),
                                    initial[i].first, initial[i].second));
  }
  Optimizer optimizer(variables, options);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = rows_of_step(step, 12);
    const auto losses = session.run([&, x = x, y = y] {
      std::vector<std::vector<Gradient>> gradients;
      std::vector<Tensor> losses;
      for (int worker = 0; worker < workers; ++worker) {
        const std::int64_t rows = 12 / workers;
        const DeviceScope task(concat("/job:worker/task:", worker));
        GradientTape tape;
        losses.push_back(share_of_loss(variables[0].value(), variables[1].value(),
                                       x.detached_rows(worker * rows, rows),
                                       y.detached_rows(worker * rows, rows)));
        gradients.push_back(tape.gradient(losses.back(), variables));
      }
      optimizer.apply_gradients(sum_over_replicas(variables, gradients));
      return losses;
    });
    PerReplica<Tensor> per_replica(losses);
    trained.losses.push_back(
        strategy_tests::mirrored(1, workers)->reduce(ReduceOp::kSum, per_replica).item());
  }
  for (const Variable& each : variables) trained.values.push_back(each.value());
  const std::vector<Variable> state = optimizer.state_variables();
  EXPECT_EQ(state[0].value().item_int(), kSteps);
  for (std::size_t i = 2; i < state.size(); ++i) trained.values.push_back(state[i].value());
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

TEST_F(SessionTest, InGraphTrainingMatchesOneProcessBitForBit) {
  {
    SessionCluster cluster({{"ps", 1}, {"worker", 2}});
    const SgdOptions options{.learning_rate = 0.05, .momentum = 0.9};
    expect_same_training(train_in_graph<Sgd>(cluster, 2, 1, options),
                         train_mirrored<Sgd>(2, options));
  }
  SessionCluster cluster({{"ps", 2}, {"worker", 3}});
  const AdamOptions options{.learning_rate = 0.02};
  expect_same_training(train_in_graph<Adam>(cluster, 3, 2, options),
                       train_mirrored<Adam>(3, options));
}

/// Replicas in one graph run without coordination: each worker has its own loop, and the variables
/// are shared.
TEST_F(SessionTest, AsynchronousReplicasDoNotLoseUpdates) {
  constexpr int kUpdates = 60;
  SessionCluster cluster({{"ps", 1}, {"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  Variable w = variable_on("/job:ps", "w", Tensor::zeros({5}));
  expect_on_ranks(2, [&](int worker) {
    const auto own = session.scope();
    const DeviceScope task(concat("/job:worker/task:", worker));
    for (int i = 0; i < kUpdates; ++i) {
      session.run([&] { w.assign_sub(w.value() * 0.0f + 1.0f); });
    }
  });
  expect_tensor(w.value(), {5}, std::vector<double>(5, -2.0 * kUpdates));
}

TEST_F(SessionTest, NextClientReusesVariablesAndSlots) {
  SessionCluster cluster({{"ps", 1}, {"worker", 1}});
  for (const int round : {0, 1, 2}) {
    Session session(cluster.target());
    const auto scope = session.scope();
    const std::vector<Variable> w = {variable_on("/job:ps", "w", Tensor::ones({2}))};
    Sgd optimizer(w, {.learning_rate = 1.0, .momentum = 0.9});
    optimizer.apply_gradients(std::vector<Gradient>{Tensor::full({2}, 1.0)});
    // The steps v = 0.9 * v - 1 give v the values -1, -1.9 and -2.71; each step adds v to w, which
    // starts at 1.
    const double expected[] = {0.0, -1.9, -4.61};
    EXPECT_NEAR(w[0].value().to_doubles()[0], expected[round], 1e-6);
  }
}

/// Slices and reshapes of a value are computed on the value's task.
TEST_F(SessionTest, TensorViewsAreSentBetweenWorkers) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  const Tensor ones = Tensor::from<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Tensor result = session.run([&] {
    const Tensor both = doubled_on("/job:worker/task:0", ones);
    const DeviceScope second("/job:worker/task:1");
    const Tensor rows = both[{Range{1, 3}}];
    return stop_gradient(reshape(rows, {4})) + reshape(both[3], {2, 1})[{0, 0}];
  });
  expect_tensor(result, {4}, {4.0 + 12.0, 6.0 + 12.0, 8.0 + 12.0, 10.0 + 12.0});
  expect_tensor(result.detached_rows(1, 2), {2}, {18.0, 20.0});
  EXPECT_THAT(between_tasks(session),
              ElementsAre(SessionTransfer{task_device("worker", 0), task_device("worker", 1), 2,
                                          5 * sizeof(float)}));
}

TEST_F(SessionTest, ReadsFollowProgramOrder) {
  SessionCluster cluster({{"ps", 1}, {"worker", 1}});
  Session session(cluster.target());
  const auto scope = session.scope();
  Variable v = variable_on("/job:ps", "v", Tensor(1.0f));
  const auto [before, after] = session.run([&] {
    const Tensor first = v.value();
    v.assign(Tensor(5.0f));
    const Tensor second = v.value();
    v.assign_add(second), v.assign_sub(1.0);
    return std::pair(first, second);
  });
  EXPECT_EQ(before.item(), 1.0f);
  EXPECT_EQ(after.item(), 5.0f);
  EXPECT_EQ(v.value().item(), 9.0f);
  // A value stays on its task, where a later step can use it.
  EXPECT_EQ(session.run([&, after = after] { return after + v.value(); }).item(), 14.0f);
}

TEST_F(SessionTest, ErrorsNameTaskOperationAndLine) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  const Tensor row = Tensor::from<std::int64_t>({1}, {7});
  const Tensor table = Tensor::ones({3, 2});
  const Error error = error_of([&] {
    session.run([&] {
      Tensor bad;
      {
        const DeviceScope second("/job:worker/task:1");
        bad = gather(table, row);
      }
      return doubled_on("/job:worker/task:0", bad);
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
  EXPECT_THAT(error.message(), HasSubstr("worker 1: gather at session_test.cc:"));
  EXPECT_THAT(error.message(), HasSubstr("index out of range; expected 0 .. 2, got 7"));
  EXPECT_THAT(error.message(), Not(HasSubstr("new Session")));
  const DeviceScope second("/job:worker/task:1");
  EXPECT_ERROR((void)session.run([&] { return (table + 1.0f).to_doubles(); }), kFailedPrecondition,
               "the value of add at session_test.cc:", "is read on the host within Session::run()",
               "worker 1", "return the tensor");
  EXPECT_ERROR(session.run([&] { session.run([] {}); }), kFailedPrecondition, "within a step");
  const Tensor lost = [&] {
    Tensor made;
    EXPECT_THROW(session.run([&] {
      made = table + 1.0f;
      fail(ErrorCode::kAborted, "of the program");
    }),
                 Error);
    return made;
  }();
  EXPECT_ERROR((void)lost.to_doubles(), kFailedPrecondition, "its step failed");
  EXPECT_EQ((table + 1.0f).to_doubles()[0], 2.0);  // the session is still usable
}

/// Returns the resident memory of this process, in bytes.
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

/// The step fails, but worker 0's part of it succeeds, and the client's tensor `large` refers to
/// that part's result.
TEST_F(SessionTest, FailedRemoteStepDoesNotLeakValues) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  const Tensor row = Tensor::from<std::int64_t>({1}, {7}), table = Tensor::ones({3, 2});
  const Tensor column = Tensor::ones({4096, 1}), line = Tensor::ones({1, 1024});
  const auto failing_step = [&] {
    Tensor large;
    EXPECT_ERROR(session.run([&] {
      {
        const DeviceScope first("/job:worker/task:0");
        large = column + line;
      }
      const DeviceScope second("/job:worker/task:1");
      return gather(table, row);
    }),
                 kInvalidArgument, "worker 1: gather");
  };
  failing_step();
  const std::size_t before = resident_bytes(), value_bytes = 4096 * 1024 * sizeof(float);
  for (int step = 0; step < 20; ++step) failing_step();
  EXPECT_LT(resident_bytes(), before + 10 * value_bytes);
}

/// Recorder that records nothing.
class CapturingStep final : public StepRecorder {
 public:
  const void* reserve(Device, std::size_t, std::function<void(std::byte*)>,
                      const Identity&) override {
    return nullptr;
  }
  void on_replay(std::function<void()>, std::function<void()>) override {}
  void uses(const std::shared_ptr<VariableMemory>&) override {}
  void follows_step(const RandomKey&) override {}
  bool is_of_step(const RandomKey&) const override { return false; }
};

TEST_F(SessionTest, CapturedStepRejectsRemoteOperations) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  CapturingStep captured;
  const StepRecorderScope capture(captured);
  EXPECT_ERROR((void)doubled_on("/job:worker/task:1", Tensor(1.0f)), kUnimplemented,
               "Session: add at session_test.cc:", "on worker 1 in a captured step",
               "call the function without captured()");
}

TEST_F(SessionTest, ErrorNamesDeadTask) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target(0), {.timeout = 10s});
  const auto scope = session.scope();
  const Tensor there = doubled_on("/job:worker/task:1", Tensor(1.0f));
  cluster.kill(1);
  const Error direct = error_of([&] { (void)there.item(); });
  EXPECT_EQ(direct.code(), ErrorCode::kUnavailable) << direct.message();
  EXPECT_THAT(direct.message(), HasSubstr("worker 1"));
  const Error by_other = error_of([&] { (void)doubled_on("/job:worker/task:0", there); });
  EXPECT_THAT(by_other.message(), HasSubstr("worker 1 (127.0.0.1:"));
}

TEST_F(SessionTest, OperationsRunOnScopeDevice) {
  SessionCluster cluster({{"worker", 1}});
  Session session(cluster.target());
  const auto scope = session.scope();
  std::vector<std::string> lines;
  set_log_device_placement(true, [&](const std::string& line) { lines.push_back(line); });
  (void)doubled_on("/job:worker/task:0/device:CPU:3", Tensor(1.0f)).item();
  set_log_device_placement(false);
  // The client and the server, which is also in this process, each log one line.
  EXPECT_THAT(lines, ::testing::UnorderedElementsAre(
                         "AddV2: /job:worker/replica:0/task:0/device:CPU:3",
                         "AddV2: /job:localhost/replica:0/task:0/device:CPU:3"));
}

/// Each gradient is computed on the task of its operation, so no weight is transferred.
TEST_F(SessionTest, EachGradientRunsOnTaskOfItsOperation) {
  SessionCluster cluster({{"worker", 2}});
  Session session(cluster.target());
  const auto scope = session.scope();
  const std::vector<Variable> w = {
      variable_on("/job:worker/task:0", "w0", Tensor::full({30, 40}, 0.01)),
      variable_on("/job:worker/task:1", "w1", Tensor::full({40, 50}, 0.02))};
  const Tensor x = Tensor::full({2, 30}, 0.5);
  Sgd optimizer(w, {.learning_rate = 0.1});
  const Tensor loss = session.run([&] {
    GradientTape tape;
    Tensor hidden, result;
    {
      const DeviceScope first("/job:worker/task:0");
      hidden = tanh(matmul(x, w[0]));
    }
    {
      const DeviceScope second("/job:worker/task:1");
      result = reduce_sum(square(matmul(hidden, w[1])));
    }
    optimizer.minimize(tape, result);
    return result;
  });
  // Only `hidden` [2, 40] is sent to worker 1, and its gradient is sent back.
  EXPECT_THAT(between_tasks(session),
              ElementsAre(SessionTransfer{task_device("worker", 0), task_device("worker", 1), 1,
                                          2 * 40 * sizeof(float)},
                          SessionTransfer{task_device("worker", 1), task_device("worker", 0), 1,
                                          2 * 40 * sizeof(float)}));
  EXPECT_GT(loss.item(), 0.0f);
}

TUTTI_PROCESS_FUNCTION(serve_sessions) {
  const ClusterSpec cluster = resolver_from_environment()->cluster_spec();
  const launch::Task self = testing::this_process();
  Server server(cluster, self.type, self.index);
  std::cout << "serving, life " << testing::num_restarts() << std::endl;
  server.join();
  return Json("served");
}

/// Cluster of two workers and one parameter server, each in its own process.
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

TEST_F(SessionFailures, KilledTaskErrorNamesVariablesAndNewSessionContinues) {
  ServedCluster cluster;
  {
    Session session(cluster.target(), {.timeout = 20s});
    const auto scope = session.scope();
    Variable kept = variable_on("/job:worker/task:1", "kept", Tensor::full({2}, 1.0));
    Variable lost = variable_on("/job:ps/task:0", "lost", Tensor::full({2}, 10.0));
    kept.assign_add(Tensor::full({2}, 5.0));
    const auto sum = [&] {
      const DeviceScope first("/job:worker/task:0");
      return kept.value() + lost.value();
    };
    expect_tensor(session.run(sum), {2}, {16.0, 16.0});
    cluster.runner().terminate("ps", 0);
    const TimePoint begin = Clock::system().now();
    const Error error = error_of([&] { lost.assign_add(Tensor::full({2}, 1.0)); });
    EXPECT_LT(Clock::system().now() - begin, 10s);
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(), HasSubstr(concat("ps 0 (", cluster.runner().address("ps", 0))));
    EXPECT_THAT(error.message(), HasSubstr("and with it its values and the variables 'lost'"));
    EXPECT_THAT(error.message(), Not(HasSubstr("'kept'")));
    EXPECT_THAT(error.message(), HasSubstr("create a new Session"));
    // A step that also needs the dead task fails with an error that names the lost variables; a
    // step that needs only live tasks still works.
    EXPECT_THAT(error_of([&] { (void)session.run(sum); }).message(),
                HasSubstr("the variables 'lost'"));
    expect_tensor(kept.value(), {2}, {6.0, 6.0});
  }
  // The servers keep running after this session ends.
  cluster.start_ps_again();
  {
    Session session(cluster.target(), {.timeout = 20s});
    const auto scope = session.scope();
    Variable kept = variable_on("/job:worker/task:1", "kept", Tensor::full({2}, -1.0));
    Variable lost = variable_on("/job:ps/task:0", "lost", Tensor::full({2}, 20.0));
    expect_tensor(kept.value(), {2}, {6.0, 6.0});
    expect_tensor(lost.value(), {2}, {20.0, 20.0});
    expect_tensor(doubled_on("/job:worker/task:0", lost), {2}, {40.0, 40.0});
  }
  const auto& result = cluster.runner().join();  // the servers exit now
  EXPECT_EQ(result.return_values, (std::vector<Json>(3, Json("served"))));
}

TEST_F(SessionFailures, RestartedTaskHasNoVariables) {
  ServedCluster cluster;
  Session session(cluster.target(), {.timeout = 20s});
  const auto scope = session.scope();
  Variable lost = variable_on("/job:ps/task:0", "lost", Tensor::full({2}, 10.0));
  expect_tensor(lost.value(), {2}, {10.0, 10.0});
  cluster.runner().terminate("ps", 0);
  cluster.start_ps_again();
  const Error error = error_of([&] { lost.assign_add(Tensor::full({2}, 1.0)); });
  EXPECT_THAT(error.message(), HasSubstr("and with it its values and the variables 'lost'"));
  EXPECT_TRUE(error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kUnavailable)
      << error.message();
  Session next(cluster.target(), {.timeout = 20s});
  const auto inner = next.scope();
  const Variable made = variable_on("/job:ps/task:0", "lost", Tensor::full({2}, 3.0));
  expect_tensor(made.value(), {2}, {3.0, 3.0});
}

}  // namespace session_tests
}  // namespace
}  // namespace tutti
