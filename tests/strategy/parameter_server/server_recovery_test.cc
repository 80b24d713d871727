// Workers, coordinators and whole programs that die: every change counts once.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>

#include "core/file.h"
#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/coordinator/journal_file.h"
#include "tests/strategy/parameter_server/durable_helpers.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tests/strategy/strategy_helpers.h"
#include "tutti/core/random.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::server_recovery_tests {

using durable_tests::KeptWarnings;
using durable_tests::OwnFolder;
using strategy_tests::numbers;
using strategy_tests::on_cpus;
using ::testing::Contains;
using testing::expect_error;
using testing::HangWatchdog;
using ::testing::HasSubstr;

constexpr int kWorkers = 3, kServers = 3, kRows = 7;

ParameterServerOptions three_servers() {
  ParameterServerOptions options;
  options.local = on_cpus(1);
  options.num_servers = kServers;
  options.num_workers = kWorkers;
  return options;
}

ClusterCoordinatorOptions kept_in(const std::string& folder, std::uint64_t every_closures) {
  ClusterCoordinatorOptions options;
  options.most_attempts = options.most_workers_lost = 1000;  // here all the dying is on purpose
  options.snapshots.folder = folder;
  options.snapshots.every_closures = every_closures;
  return options;
}

/// What a program does in one life: it makes its variables, defines its steps, and goes on with
/// what is in the folder.
struct Counting {
  explicit Counting(const std::string& folder, std::uint64_t every_closures = 100)
      : strategy(three_servers()), scope(strategy.scope()) {
    begin(kept_in(folder, every_closures));
  }
  void begin(const ClusterCoordinatorOptions& options) {
    coordinator.emplace(workers, options);
    coordinator->define("count", [this](std::int64_t number) {
      const Tensor one = Tensor::scalar(1, DType::kInt64);
      count.assign_add(one);
      (void)count.value();  // what was changed so far is sent
      rows.scatter_add({Tensor::from<std::int64_t>({1}, {1}),
                        Tensor::from<std::int64_t>({1}, {number % kRows}), Shape{kRows}});
      twice.assign_add(one);
      (void)rows.value();
      twice.assign_add(one);
      return number * number;
    });
    coordinator->start();
  }
  std::int64_t next() const { return static_cast<std::int64_t>(coordinator->num_scheduled()); }
  RemoteValue schedule() { return coordinator->schedule("count", next()); }
  void kill_worker(int index) {
    testing::MortalWorker& worker = testing::mortal_worker(*coordinator, index);
    worker.kill();
    worker.restart();
  }
  void expect_counted(std::int64_t closures) {
    EXPECT_EQ(count.value().item_int(), closures);
    EXPECT_EQ(twice.value().item_int(), 2 * closures);
    const std::vector<double> by_row = numbers(rows.value());
    for (int row = 0; row < kRows; ++row) {
      const std::int64_t expected = (closures - row + kRows - 1) / kRows;
      EXPECT_EQ(by_row[static_cast<std::size_t>(row)], static_cast<double>(expected)) << row;
    }
  }

  ParameterServerStrategy strategy;
  const Scope scope;
  testing::MortalWorkers workers{strategy};
  Variable count{Tensor::scalar(0, DType::kInt64), VariableOptions{.name = "count"}};
  Variable rows{Tensor::full({kRows}, 0.0, DType::kInt64), VariableOptions{.name = "rows"}};
  Variable twice{Tensor::scalar(0, DType::kInt64), VariableOptions{.name = "twice"}};
  std::optional<ClusterCoordinator> coordinator;
};

/// 10,000 closures; 30 times a worker, the coordinator or the whole program ends. (Servers that die
/// alone: remote_servers_test.cc.)
TEST(ServerRecovery, CountsAreExactAfterAnyDeath) {
  const HangWatchdog watchdog("everybody dies", std::chrono::seconds(600));
  const OwnFolder folder("everybody");
  const KeptWarnings quiet;
  constexpr std::int64_t kClosures = 10000, kKills = 30;
  const RandomStream random({.seed = 20});
  std::array<int, 3> num_killed{};
  auto program = std::make_unique<Counting>(folder.path(), 150);
  std::int64_t next_kill = kClosures / kKills;
  while (program->next() < kClosures) {
    (void)program->schedule();
    if (program->next() != next_kill) continue;
    const auto place = static_cast<std::uint64_t>(next_kill);
    next_kill += kClosures / kKills;
    const auto kind = static_cast<std::size_t>(random.below(2 * place, 3));
    const auto victim = static_cast<int>(random.below(2 * place + 1, 3));
    ++num_killed[kind];
    switch (kind) {
      case 0:
        program->kill_worker(victim);
        break;
      case 1:
        program->coordinator.reset();
        program->begin(kept_in(folder.path(), 150));
        break;
      default:
        program.reset();
        program = std::make_unique<Counting>(folder.path(), 150);
    }
  }
  program->coordinator->join();
  program->expect_counted(kClosures);
  EXPECT_EQ(num_killed[0] + num_killed[1] + num_killed[2], kKills);
  for (const int each : num_killed) EXPECT_GE(each, 3);
  // Another program finds all of it done.
  program.reset();
  program = std::make_unique<Counting>(folder.path(), 150);
  EXPECT_EQ(program->next(), kClosures);
  program->coordinator->join();
  program->expect_counted(kClosures);
}

TEST(ServerRecovery, NewCoordinatorRunsQueuedClosures) {
  const HangWatchdog watchdog("queued closures");
  const OwnFolder folder("queued");
  std::uint64_t term = 0;
  {
    Counting program(folder.path());
    for (int i = 0; i < 300; ++i) (void)program.schedule();
    term = internal::CoordinatorInside::closures(*program.coordinator).term();
  }
  Counting program(folder.path());
  EXPECT_EQ(program.next(), 300);
  EXPECT_GT(internal::CoordinatorInside::closures(*program.coordinator).term(), term);
  program.coordinator->join();
  program.expect_counted(300);
  EXPECT_EQ(program.schedule().fetch<std::int64_t>(), 300 * 300);
}

/// What the hook gets leads to the same state as the file, also over several coordinators.
TEST(ServerRecovery, TheUsersJournalHearsEverything) {
  const HangWatchdog watchdog("a hook");
  const OwnFolder folder("hook");
  const KeptWarnings quiet;
  std::vector<std::byte> records;
  ParameterServerStrategy strategy(three_servers());
  ClusterCoordinatorOptions options = kept_in(folder.path(), 10);
  options.journal = [&](std::span<const std::byte> record) {
    records.insert(records.end(), record.begin(), record.end());
  };
  for (int life = 0; life < 3; ++life) {
    ClusterCoordinator coordinator(strategy, options);
    coordinator.define("nothing", [] {});
    coordinator.start();
    for (int i = 0; i < 25; ++i) (void)coordinator.schedule("nothing");
    if (life < 2) continue;
    coordinator.join();
    coordinator.save_snapshot();
    const internal::ClosureLedger ledger =
        internal::CoordinatorInside::closures(coordinator).ledger();
    const auto replayed = internal::ClosureLedger::replay(records, {1000, 1000});
    EXPECT_EQ(replayed.bytes(), ledger.bytes());
    EXPECT_EQ(replayed.next_number(), 75U);
    EXPECT_EQ(replayed.term(), 3U);
  }
}

TEST(ServerRecovery, TheJournalStaysShort) {
  const HangWatchdog watchdog("short journal");
  const OwnFolder folder("short");
  {
    ParameterServerStrategy strategy(three_servers());
    const auto scope = strategy.scope();
    Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
    ClusterCoordinatorOptions options = kept_in(folder.path(), 50);
    options.snapshots.most_journal_bytes = 2000;
    ClusterCoordinator coordinator(strategy, options);
    coordinator.define("count", [&](const Tensor& by) { count.assign_add(reduce_sum(by)); });
    coordinator.start();
    const Tensor ones = Tensor::ones({100}, DType::kInt64);  // 800 bytes in the journal
    for (int i = 0; i < 1000; ++i) (void)coordinator.schedule("count", ones);
    coordinator.join();
    for (int i = 0; i < 10; ++i) (void)coordinator.schedule("count", ones);
    coordinator.join();
    coordinator.save_snapshot();
    EXPECT_EQ(count.value().item_int(), 101000);
    EXPECT_LT(read_file(folder.path() + "/journal").size(), 60000U);  // of 850000
  }
  ParameterServerStrategy strategy(three_servers());
  const auto scope = strategy.scope();
  Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  ClusterCoordinator coordinator(strategy, kept_in(folder.path(), 50));
  coordinator.define("count", [&](const Tensor& by) { count.assign_add(reduce_sum(by)); });
  coordinator.start();
  EXPECT_EQ(count.value().item_int(), 101000);  // the values of the cut, before any step
  EXPECT_EQ(coordinator.num_scheduled(), 1010U);
}

TEST(ServerRecovery, WhatIsChangedOutsideStepsIsThereAgain) {
  const HangWatchdog watchdog("outside steps");
  const OwnFolder folder("outside");
  {
    Counting program(folder.path());
    program.count.assign(1000.0);
    EXPECT_EQ(program.count.value().item_int(), 1000);  // no cut has it
  }
  Counting program(folder.path());
  (void)program.schedule();
  program.coordinator->join();
  EXPECT_EQ(program.count.value().item_int(), 1001);
  program.count.assign_add(Tensor::scalar(5, DType::kInt64));
  program.count.assign_add(Tensor::scalar(5, DType::kInt64));
  EXPECT_EQ(program.count.value().item_int(), 1011);
}

TEST(ServerRecovery, WithoutAFolderThereIsNothingToSaveInto) {
  const HangWatchdog watchdog("no folder");
  Counting program("");
  (void)program.schedule();
  program.coordinator->join();
  expect_error(ErrorCode::kFailedPrecondition, {"no folder to save into"},
               [&] { program.coordinator->save_snapshot(); });
}

TEST(ServerRecovery, ADamagedCutThatCountsEndsTheStartWithItsName) {
  const HangWatchdog watchdog("damaged cut");
  const OwnFolder folder("damaged");
  {
    Counting program(folder.path());
    (void)program.schedule();
    program.coordinator->join();
    program.coordinator->save_snapshot();
  }
  const std::string file = folder.path() + "/ps_1_of_3.cut_2";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomically(file, bytes);
  expect_error(ErrorCode::kDataLoss, {file, "offset", "expected"},
               [&] { Counting again(folder.path()); });
}

/// A full disk costs the cut, not the training; the cut before still counts, with the log.
TEST(ServerRecovery, FailedSnapshotIsRetried) {
  const HangWatchdog watchdog("full disk");
  const OwnFolder folder("full_disk");
  const KeptWarnings warnings;
  {
    Counting program(folder.path(), 1'000'000);
    for (int i = 0; i < 20; ++i) (void)program.schedule();
    program.coordinator->join();
    file_faults::arm(folder.path() + "/ps_1_of_3.cut_2.new", file_faults::Action::kNoSpace, 1,
                     1000);
    expect_error(ErrorCode::kResourceExhausted, {"ps_1_of_3.cut_2.new"},
                 [&] { program.coordinator->save_snapshot(); });
    file_faults::disarm();
    EXPECT_THAT(warnings.lines, Contains(HasSubstr("could not save a cut")));
    for (int i = 0; i < 20; ++i) (void)program.schedule();
    program.coordinator->join();
  }
  {
    Counting program(folder.path(), 1'000'000);
    program.expect_counted(40);
    program.coordinator->save_snapshot();
    EXPECT_THAT(folder.names(), Contains("ps_1_of_3.cut_3"));
    (void)program.schedule();
    program.coordinator->join();
  }
  Counting program(folder.path(), 1'000'000);
  program.expect_counted(41);
}

TEST(ServerRecovery, AnotherProgramsFolderIsRefused) {
  const HangWatchdog watchdog("another program");
  const OwnFolder folder("another");
  { const Counting program(folder.path()); }
  ParameterServerStrategy strategy(three_servers());
  const auto scope = strategy.scope();
  const Variable other(Tensor::zeros({2, 2}), {.name = "other"});
  ClusterCoordinator coordinator(strategy, kept_in(folder.path(), 10));
  coordinator.define("nothing", [] {});
  expect_error(ErrorCode::kFailedPrecondition,
               {"ps 0: variable 'other'", "expected it in the snapshot, found none", "try"},
               [&] { coordinator.start(); });
}

TEST(ServerRecovery, OneCoordinatorHasAFolder) {
  const HangWatchdog watchdog("one coordinator");
  const OwnFolder folder("one");
  const Counting program(folder.path());
  expect_error(ErrorCode::kFailedPrecondition, {"journal: another coordinator writes it"},
               [&] { internal::JournalFile(folder.path(), {}); });
}

TEST(ServerRecovery, OptionsOfNoUseAreRefused) {
  const HangWatchdog watchdog("options");
  const OwnFolder folder("options");
  expect_error(ErrorCode::kInvalidArgument, {"snapshots: expected a cut every closure", "got"},
               [&] { Counting program(folder.path(), 0); });
}

}  // namespace tutti::server_recovery_tests
