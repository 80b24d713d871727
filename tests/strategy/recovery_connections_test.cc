// Tests recovery when the connection between two live workers breaks. The workers are threads, but
// they form a real job.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/recovery.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/ranks.h"
#include "tools/launch/job_plan.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::recovery_connections_tests {

using ::testing::AnyOf;
using testing::ChaosProxy;
using testing::HangWatchdog;
using ::testing::StartsWith;
using namespace std::chrono_literals;

constexpr int kTrainers = 2;
constexpr std::int64_t kSteps = 6, kBreaksAt = 3;
/// Step at which workers stop if no fault interrupts them, so that the test cannot hang.
constexpr std::int64_t kLastStep = 20000;

/// State of a worker at the end of training.
struct Trained {
  double total = 0;
  std::int64_t steps = 0;
  int recoveries = 0;
  std::vector<Verdict> fatal;
  std::vector<Member> members;
};

class ConnectionRecovery : public ::testing::Test {
 protected:
  ConnectionRecovery() : ports_(launch::free_ports(2 * kTrainers)) {}

  ClusterSpec cluster() const {
    std::vector<std::string> addresses;
    for (int w = 0; w < kTrainers; ++w) addresses.push_back(concat("127.0.0.1:", port(w)));
    return ClusterSpec({{"worker", addresses}});
  }
  int port(int number) const { return ports_.at(static_cast<std::size_t>(number)); }
  int data_port(int worker) const { return port(kTrainers + worker); }

  static MultiWorkerOptions trainer_options() {
    MultiWorkerOptions options;
    options.local = strategy_tests::on_cpus(1);
    options.cluster.join_timeout = 60s;
    options.cluster.way = ConnectOptions::Way::kTcp;
    return options;
  }

  /// Trains; each step adds 1 per worker. Worker 0 calls `breaks` once, in step kBreaksAt. The
  /// delay until worker 1 notices the fault varies, so both workers train until they have rolled
  /// back.
  void train(int worker, const MultiWorkerOptions& options,
             const std::function<void(ControlClient&)>& breaks) {
    MultiWorkerMirroredStrategy strategy(
        StaticResolver(cluster(), {.task_type = "worker", .task_id = worker}), options);
    const auto scope = strategy.scope();
    Variable total(Tensor::zeros({}),
                   {.name = "total", .trainable = false, .aggregation = VariableAggregation::kSum});
    std::int64_t step = 0;
    Checkpoint state({total});
    state.add_state("strategy", {[&] { return strategy.save_state(); },
                                 [&](const Json& json) { strategy.restore_state(json); }});
    state.add_state("step",
                    {[&] { return Json(step); }, [&](const Json& json) { step = json.as_int(); }});
    ControlClient& control = *internal::team_of(strategy)->control();
    bool is_broken = false;
    Recovery recovery(strategy, state);
    recovery.run([&] {
      while (step < kSteps || (recovery.num_recoveries() == 0 && step < kLastStep)) {
        if (worker == 0 && step == kBreaksAt && !is_broken) {
          is_broken = true;
          breaks(control);
        }
        strategy.run([&] { total.assign_add(strategy_tests::num(1.0)); });
        recovery.commit(++step);
        if (step >= kSteps) Clock::system().sleep_for(1ms);
      }
    });
    Trained trained{total.value().item_double(), step, recovery.num_recoveries(), {}, {}};
    for (const Verdict& verdict : control.verdicts()) {
      if (verdict.is_fatal) trained.fatal.push_back(verdict);
    }
    trained.members = control.members();
    // A barrier: no worker leaves before all workers have read the verdicts and members.
    strategy.reduce(ReduceOp::kSum, strategy.run([] { return strategy_tests::num(1.0); }));
    trained_[static_cast<std::size_t>(worker)] = std::move(trained);
  }

  /// Expects that no worker was lost, that every step was counted once, and that one verdict named
  /// the connection.
  void expect_one_recovery() const {
    for (const Trained& each : trained_) {
      EXPECT_EQ(each.recoveries, 1);
      EXPECT_GE(each.steps, kSteps);
      EXPECT_EQ(each.steps, trained_.front().steps);
      EXPECT_EQ(each.total, static_cast<double>(kTrainers * each.steps));
      ASSERT_EQ(each.fatal.size(), 1u);
      EXPECT_EQ(each.fatal[0].kind, VerdictKind::kDisconnected) << each.fatal[0].message;
      EXPECT_THAT(each.fatal[0].message,
                  AnyOf(StartsWith("worker 0 lost its connection to worker 1: "),
                        StartsWith("worker 1 lost its connection to worker 0: ")));
      for (const Member& member : each.members) {
        EXPECT_TRUE(member.is_here) << member.to_string();
        EXPECT_EQ(member.incarnation, 0u);
      }
    }
  }

  const HangWatchdog watchdog_{"recovery of connections", 120s};
  const std::vector<int> ports_;
  std::vector<Trained> trained_{kTrainers};
};

// Tests only the consequences of a report, without a transport fault.
TEST_F(ConnectionRecovery, DisconnectionReportRollsBackToLastCommit) {
  const std::string error = error_of_ranks(kTrainers, [&](int worker) {
    train(worker, trainer_options(), [](ControlClient& control) {
      control.report_disconnection({"worker", 1, ""}, 0, "simulated by the test");
    });
  });
  EXPECT_EQ(error, "");
  expect_one_recovery();
}

// Tests the full path from the reset, which both transports see, to the recovery.
TEST_F(ConnectionRecovery, ResetConnectionsAreReplacedAndStepRepeats) {
  std::vector<std::unique_ptr<ChaosProxy>> proxies;
  for (int worker = 0; worker < kTrainers; ++worker) {
    proxies.push_back(std::make_unique<ChaosProxy>(
        internal::Endpoint{"127.0.0.1", data_port(worker)}, testing::ChaosPlan{}));
  }
  const std::string error = error_of_ranks(kTrainers, [&](int worker) {
    MultiWorkerOptions options = trainer_options();
    options.cluster.listen_at = concat("127.0.0.1:", data_port(worker));
    options.cluster.reached_at = proxies[static_cast<std::size_t>(worker)]->endpoint().to_string();
    train(worker, options, [&](ControlClient&) {
      for (const auto& proxy : proxies) proxy->cut_all();
    });
  });
  EXPECT_EQ(error, "");
  expect_one_recovery();
}

}  // namespace tutti::recovery_connections_tests
