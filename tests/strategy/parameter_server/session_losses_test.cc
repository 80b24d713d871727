// Sessions whose tasks are killed: errors say who and what is lost, and a new session goes on.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/multi_process_runner.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/strategy/parameter_server/session/server.h"
#include "tutti/strategy/parameter_server/session/session.h"

namespace tutti {
namespace {
namespace session_losses_tests {

using strategy_tests::error_of;
using testing::expect_tensor;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using testing::MultiProcessRunner;
using ::testing::Not;
using namespace std::chrono_literals;

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

TaskVariable variable_on(Session& session, const std::string& device, const std::string& name,
                         double value) {
  const Tensor initial = Tensor::full({2}, value);
  const DeviceScope scope(device);
  return session.variable(name, initial);
}

TEST(SessionLosses, AKilledTaskIsNamedWithWhatWentAndANewSessionGoesOn) {
  const HangWatchdog watchdog("a killed task", 100s);
  ServedCluster cluster;
  {
    Session session(cluster.target(), {.timeout = 20s});
    TaskVariable kept = variable_on(session, "/job:worker/task:1", "kept", 1.0);
    TaskVariable lost = variable_on(session, "/job:ps/task:0", "lost", 10.0);
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
    TaskVariable kept = variable_on(session, "/job:worker/task:1", "kept", -1.0);
    TaskVariable lost = variable_on(session, "/job:ps/task:0", "lost", 20.0);
    expect_tensor(kept.read().fetch<Tensor>(), {2}, {6.0, 6.0});
    expect_tensor(lost.read().fetch<Tensor>(), {2}, {20.0, 20.0});
    expect_tensor(session.run("add", kept, lost).fetch<Tensor>(), {2}, {26.0, 26.0});
    session.wait();
  }
  const auto& result = cluster.runner().join();  // now it is
  EXPECT_EQ(result.return_values, (std::vector<Json>(3, Json("served"))));
}

TEST(SessionLosses, ATaskThatWasStartedAgainIsAnotherOne) {
  const HangWatchdog watchdog("a task that was started again", 100s);
  ServedCluster cluster;
  Session session(cluster.target(), {.timeout = 20s});
  TaskVariable lost = variable_on(session, "/job:ps/task:0", "lost", 10.0);
  expect_tensor(lost.read().fetch<Tensor>(), {2}, {10.0, 10.0});
  cluster.runner().terminate("ps", 0);
  cluster.start_ps_again();
  lost.assign_add(Tensor::full({2}, 1.0));
  const Error error = error_of([&] { (void)lost.read().fetch(); });
  EXPECT_THAT(error.message(), HasSubstr("and with it its values and the variables 'lost'"));
  EXPECT_TRUE(error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kUnavailable)
      << error.message();
  Session next(cluster.target(), {.timeout = 20s});
  const TaskVariable made = variable_on(next, "/job:ps/task:0", "lost", 3.0);
  expect_tensor(made.read().fetch<Tensor>(), {2}, {3.0, 3.0});
}

/// Errors of steps are none of connections, whatever their code.
TEST(SessionLosses, AStepsOwnErrorStaysAsItIs) {
  const HangWatchdog watchdog("a step's error");
  ServerOptions options;
  options.steps.define("refuse", [] { fail(ErrorCode::kUnavailable, "no more bread"); });
  const auto server = Server::create_local_server(options);
  Session session(server->target());
  const Error error = error_of([&] { (void)session.run("refuse").fetch(); });
  EXPECT_THAT(error.message(), HasSubstr("no more bread"));
  EXPECT_THAT(error.message(), Not(HasSubstr("new Session")));
  EXPECT_THROW(session.wait(), Error);
}

}  // namespace session_losses_tests
}  // namespace
}  // namespace tutti
