// A second coordinator of the same strategy: closures are numbered on, and no empty store is saved.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tests/strategy/parameter_server/durable_process_kit.h"
#include "tests/strategy/strategy_helpers.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::second_coordinator_tests {

using durable_tests::DurableJob;
using durable_tests::KeptWarnings;
using durable_tests::OwnFolder;
using durable_tests::ServerProcesses;
using strategy_tests::on_cpus;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;

/// Schedules so many, and waits for them.
void count_more(ClusterCoordinator& coordinator, int closures) {
  for (int i = 0; i < closures; ++i) (void)DurableJob::schedule(coordinator);
  coordinator.join();
}

/// Servers remember the first one's closures: those of the second are others.
TEST(SecondCoordinator, WithANewFolderGoesOnWithWhatServersHave) {
  const HangWatchdog watchdog("a new folder");
  const OwnFolder first("second_a"), second("second_b");
  const KeptWarnings quiet;
  ServerProcesses processes(2);
  DurableJob job(processes);
  {
    ClusterCoordinator coordinator = job.begin(first.path(), 20);
    count_more(coordinator, 50);
  }
  ClusterCoordinator coordinator = job.begin(second.path(), 20);
  EXPECT_EQ(coordinator.num_scheduled(), 50U);
  count_more(coordinator, 49);
  job.expect_counted(99);
  job.replace(1);  // what the second one did is in its own folder
  count_more(coordinator, 10);
  job.expect_counted(109);
}

TEST(SecondCoordinator, NewFolderIsRefusedWithAnEmptyServer) {
  const HangWatchdog watchdog("an empty server");
  const OwnFolder first("second_c"), second("second_d");
  const KeptWarnings quiet;
  ServerProcesses processes(2);
  DurableJob job(processes);
  {
    ClusterCoordinator coordinator = job.begin(first.path(), 20);
    count_more(coordinator, 50);
  }
  processes.kill(1);
  processes.start(1);
  for (int time = 0; time < 2; ++time) {  // trying again changes nothing
    expect_error(ErrorCode::kUnavailable,
                 {"ClusterCoordinator::start", "ps 1", "died", second.path(), first.path()},
                 [&] { (void)job.begin(second.path(), 20); });
    for (const std::string& name : second.names()) EXPECT_EQ(name.find(".cut_"), name.npos) << name;
  }
  // The folder that the error names has everything.
  ClusterCoordinator coordinator = job.begin(first.path(), 20);
  EXPECT_EQ(coordinator.num_scheduled(), 50U);
  coordinator.join();
  job.expect_counted(50);
  count_more(coordinator, 20);
  job.expect_counted(70);
}

/// What the folder of before has counts, not what came to servers in between.
TEST(SecondCoordinator, WithTheFirstOnesFolderAfterAnotherGoesBackToIt) {
  const HangWatchdog watchdog("there and back");
  const OwnFolder first("second_e"), second("second_f");
  const KeptWarnings quiet;
  ServerProcesses processes(2);
  DurableJob job(processes);
  std::uint64_t term = 0;
  {
    ClusterCoordinator coordinator = job.begin(first.path(), 20);
    count_more(coordinator, 50);
  }
  {
    ClusterCoordinator coordinator = job.begin(second.path(), 20);
    count_more(coordinator, 7);
    job.replace(0);
    term = internal::CoordinatorInside::closures(coordinator).term();
  }
  ClusterCoordinator coordinator = job.begin(first.path(), 20);
  EXPECT_GT(internal::CoordinatorInside::closures(coordinator).term(),
            term);  // nothing late of the second one counts
  EXPECT_EQ(coordinator.num_scheduled(), 50U);
  coordinator.join();
  job.expect_counted(50);
  job.replace(1);
  count_more(coordinator, 6);
  job.expect_counted(56);
}

ParameterServerOptions second_options() {
  ParameterServerOptions options;
  options.local = on_cpus(1);
  options.num_servers = options.num_workers = 2;
  return options;
}

/// Counts 30 closures; returns the count.
std::int64_t count_30(ParameterServerStrategy& strategy, Variable& count,
                      const ClusterCoordinatorOptions& options) {
  ClusterCoordinator coordinator(strategy, options);
  coordinator.define("count", [&] { count.assign_add(Tensor::scalar(1, DType::kInt64)); });
  coordinator.start();
  for (int i = 0; i < 30; ++i) (void)coordinator.schedule("count");
  coordinator.join();
  return count.value().item_int();
}

TEST(SecondCoordinatorInOneProcess, CountsWithAndWithoutFolders) {
  const HangWatchdog watchdog("several coordinators");
  const OwnFolder first("second_g"), second("second_h");
  ParameterServerStrategy strategy(second_options());
  const auto scope = strategy.scope();
  Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  ClusterCoordinatorOptions kept;
  std::vector<std::byte> records;
  kept.journal = [&](std::span<const std::byte> record) {
    records.insert(records.end(), record.begin(), record.end());
  };
  EXPECT_EQ(count_30(strategy, count, {}), 30);
  EXPECT_EQ(count_30(strategy, count, kept), 60);
  EXPECT_EQ(internal::ClosureLedger::replay(records).next_number(), 60U);
  kept.snapshots.folder = first.path();
  EXPECT_EQ(count_30(strategy, count, kept), 90);
  kept.snapshots.folder = second.path();
  EXPECT_EQ(count_30(strategy, count, kept), 120);
  EXPECT_EQ(count_30(strategy, count, {}), 150);
}

/// What the folder of before has counts, not what came to servers in between; what is changed
/// outside steps goes on from there.
TEST(SecondCoordinatorInOneProcess, WithTheFirstOnesFolderAfterAnotherGoesBackToIt) {
  const HangWatchdog watchdog("there and back in one process");
  const OwnFolder first("second_i"), second("second_j");
  ParameterServerStrategy strategy(second_options());
  const auto scope = strategy.scope();
  Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  ClusterCoordinatorOptions options;
  options.snapshots.folder = first.path();
  EXPECT_EQ(count_30(strategy, count, options), 30);
  count.assign_add(Tensor::scalar(5, DType::kInt64));
  EXPECT_EQ(count.value().item_int(), 35);
  options.snapshots.folder = second.path();
  EXPECT_EQ(count_30(strategy, count, options), 65);
  options.snapshots.folder = first.path();
  EXPECT_EQ(count_30(strategy, count, options), 65);
  count.assign_add(Tensor::scalar(5, DType::kInt64));
  EXPECT_EQ(count.value().item_int(), 70);
}

}  // namespace tutti::second_coordinator_tests
