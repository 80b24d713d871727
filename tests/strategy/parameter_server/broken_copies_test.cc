// Servers that both live while the connection between them is broken: it heals, or has a name.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/durable_process_kit.h"

namespace tutti::broken_copies_tests {

using durable_tests::DurableJob;
using durable_tests::KeptWarnings;
using durable_tests::OwnFolder;
using durable_tests::ServerProcesses;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;

/// So many closures, the last of which is waited for.
void count_more(ClusterCoordinator& coordinator, int closures) {
  for (int i = 0; i < closures; ++i) (void)DurableJob::schedule(coordinator);
  coordinator.join();
}

TEST(BrokenCopies, REL_G5_AConnectionThatComesBackHeals) {
  const HangWatchdog watchdog("a connection comes back");
  const OwnFolder folder("copies_heal");
  const KeptWarnings quiet;
  ServerProcesses processes(3, Durability::kReplicated);
  DurableJob job(processes, 0.0, /*most_troubled_looks=*/1'000'000);
  ClusterCoordinator coordinator = job.begin(folder.path(), 1000);
  count_more(coordinator, 20);
  processes.to_next(0).set_broken(true);
  const RemoteValue waits = DurableJob::schedule(coordinator);
  Clock::system().sleep_for(1200ms);  // longer than a break that nobody speaks of
  EXPECT_FALSE(coordinator.done());
  processes.to_next(0).set_broken(false);
  EXPECT_EQ(waits.fetch<std::int64_t>(), 20 * 20);
  count_more(coordinator, 9);
  job.expect_counted(30);
  EXPECT_EQ(job.num_rolled_back + job.num_taken_over, 1);  // of the start alone
  job.replace(0);                                          // from its copy, which has all of it
  job.expect_counted(30);
  EXPECT_EQ(job.num_rolled_back, 0);
}

TEST(BrokenCopies, REL_G5_AConnectionThatStaysBrokenEndsTheRunWithBothNames) {
  const HangWatchdog watchdog("a connection stays broken");
  const OwnFolder folder("copies_broken");
  const KeptWarnings quiet;
  ServerProcesses processes(3, Durability::kReplicated);
  DurableJob job(processes);
  ClusterCoordinator coordinator = job.begin(folder.path(), 1000);
  count_more(coordinator, 20);
  processes.to_next(1).set_broken(true);
  expect_error(ErrorCode::kUnavailable,
               {"the coordinator was stopped", "ps 1: ps 2 (", "which keeps its copy",
                "has not confirmed changes for", "connection refused", "both of them live"},
               [&] { count_more(coordinator, 1); });
  processes.to_next(1).set_broken(false);
}

/// A server that comes back while its copy cannot be reached, or no copy can be begun.
TEST(BrokenCopies, REL_G5_AServerThatCannotReachItsCopyHasAName) {
  const HangWatchdog watchdog("an unreachable copy");
  const OwnFolder folder("copies_unreachable");
  const KeptWarnings quiet;
  ServerProcesses processes(3, Durability::kReplicated);
  DurableJob job(processes);
  ClusterCoordinator coordinator = job.begin(folder.path(), 1000);
  count_more(coordinator, 20);
  processes.to_next(2).set_broken(true);
  processes.kill(2);
  processes.start(2);
  expect_error(ErrorCode::kAborted,
               {"the coordinator was stopped", "all servers live, but 5 times", "ps 2",
                "cannot get its copy", "ps 2 did not reach ps 0"},
               [&] { count_more(coordinator, 1); });
}

}  // namespace tutti::broken_copies_tests
