// A server waits for its copy to begin: for an answer, an end, or a connection that stays away.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_keeper.h"
#include "tests/strategy/parameter_server/durable_process_kit.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::backup_keeper_tests {

using durable_tests::ServerProcesses;
using internal::BackupKeeper;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;

/// The connection of ps 0 to ps 1, which keeps its copy.
std::shared_ptr<RpcClient> way_to_keeper(ServerProcesses& processes) {
  RpcClientOptions options = processes.client_options(1);
  options.self = {"ps", 0, ""};
  return processes.to_next(0).connect(processes.target(1), options);
}

internal::StoreSnapshot state_of_one() {
  internal::VariableStore store("ps 0");
  store_tests::Client client(store, 1);
  (void)client.call({internal::CreateShard{store_tests::whole("w", {3}), Tensor::ones({3})}});
  return store.snapshot();
}

TEST(BackupKeeperTest, WaitsUntilTheStateIsThere) {
  const HangWatchdog watchdog("a copy begins");
  ServerProcesses processes(2, Durability::kReplicated);
  const auto way = way_to_keeper(processes);
  BackupKeeper keeper(way, 0, 1);
  keeper.begin_with(state_of_one());
  keeper.wait_for_state();
  const Packet answer = way->call(
      internal::encode(internal::BackupMessage{internal::BackupMessage::Kind::kFetch, 0, 1}),
      store_tests::soon());
  const internal::StoreSnapshot kept = internal::state_in(answer, "the copy");
  ASSERT_EQ(kept.shards.size(), 1u);
  EXPECT_EQ(kept.shards[0].value.to_doubles(), (std::vector<double>{1, 1, 1}));
}

TEST(BackupKeeperTest, AShortBreakIsWaitedFor) {
  const HangWatchdog watchdog("a short break");
  ServerProcesses processes(2, Durability::kReplicated);
  BackupKeeper keeper(way_to_keeper(processes), 0, 1);
  processes.to_next(0).set_broken(true);
  keeper.begin_with(state_of_one());
  const auto mends = Executor::system().start("mends", [&] {
    Clock::system().sleep_for(300ms);
    processes.to_next(0).set_broken(false);
  });
  const TimePoint begin = Clock::system().now();
  keeper.wait_for_state();
  EXPECT_GE(Clock::system().now() - begin, 290ms);
  mends->join();
}

TEST(BackupKeeperTest, AConnectionThatStaysAwayForTwoSecondsIsAnError) {
  const HangWatchdog watchdog("a long break");
  ServerProcesses processes(2, Durability::kReplicated);
  BackupKeeper keeper(way_to_keeper(processes), 0, 1);
  processes.to_next(0).set_broken(true);
  const TimePoint begin = Clock::system().now();
  keeper.begin_with(state_of_one());
  expect_error(ErrorCode::kUnavailable, {"ps 1", "connection refused"},
               [&] { keeper.wait_for_state(); });
  EXPECT_GE(Clock::system().now() - begin, 1990ms);
  processes.to_next(0).set_broken(false);
}

/// It may not wait for two seconds, nor for a copy's whole timeout.
TEST(BackupKeeperTest, AServerThatEndsWaitsNoLonger) {
  const HangWatchdog watchdog("the server ends");
  ServerProcesses processes(2, Durability::kReplicated);
  const auto way = way_to_keeper(processes);
  BackupKeeper keeper(way, 0, 1);
  processes.to_next(0).set_broken(true);
  keeper.begin_with(state_of_one());
  const auto ends = Executor::system().start("ends", [&] {
    Clock::system().sleep_for(100ms);
    way->fail_all(Error(ErrorCode::kCancelled, "ps 0: the server ends"));
  });
  // The reason says that it was this, not the two seconds.
  expect_error(ErrorCode::kUnavailable, {"ps 0: the server ends"},
               [&] { keeper.wait_for_state(); });
  ends->join();
}

TEST(BackupKeeperTest, AServerProcessCanEndWhileItsCopyBegins) {
  const HangWatchdog watchdog("a process ends while its copy begins");
  ServerProcesses processes(2, Durability::kReplicated);
  auto ends = std::make_unique<internal::DurableHandler>("ps 0", 0, 2, [&] {
    return processes.to_next(0).connect_and_break(processes.target(1), processes.client_options(1));
  });
  RpcServerOptions options;
  options.wire = RpcWire::kInProcess;
  options.address = "ends-while-its-copy-begins";
  options.self = {"ps", 0, options.address};
  options.job_id = "test";
  auto server = RpcServer::start(options, *ends);
  RpcClientOptions of_chief = processes.client_options(0);
  of_chief.server = options.self;
  const auto chief = RpcClient::connect("inproc://" + options.address, of_chief);
  const auto begun = chief->start(
      internal::encode(internal::ServerOrder{ends->life(), internal::orders::BeginCopy{1}}));
  EXPECT_FALSE(begun->wait_until_ready(deadline_after(Clock::system().now(), 100ms)));
  server.reset();
  ends.reset();
  processes.to_next(0).set_broken(false);
}

}  // namespace tutti::backup_keeper_tests
