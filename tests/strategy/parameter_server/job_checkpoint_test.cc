// Tests a job's checkpoint: loss of servers, workers and coordinators, and unrecoverable states.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/job_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/strategy/parameter_server/server_processes.h"
#include "tests/support/file_faults.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/test_folder.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/parameter_server.h"

namespace tutti::job_checkpoint {

using server_processes::CountingJob;
using server_processes::ServerProcesses;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using thrown::empty_folder;
using thrown::LogLines;
using namespace std::chrono_literals;

constexpr int kRows = 7;

ParameterServerOptions two_servers(int num_servers = 2) {
  ParameterServerOptions options;
  options.local.devices = "cpu:0";
  options.num_servers = num_servers;
  options.num_workers = 3;
  return options;
}

ClusterCoordinatorOptions kept_in(const std::string& folder, Duration interval = 30s) {
  ClusterCoordinatorOptions options;
  options.most_attempts = 1000;  // because these tests kill workers on purpose
  options.checkpoint_folder = folder;
  options.checkpoint_interval = interval;
  return options;
}

/// Returns the steps of the newest and oldest versions in a folder.
std::pair<std::int64_t, std::int64_t> versions_in(const std::string& folder) {
  const auto versions = list_checkpoints(folder);
  return {versions.back().step, versions.front().step};
}

/// Program in one process that creates its variables, defines its steps, and resumes from the
/// newest checkpoint version in the folder, if there is one.
struct Program {
  explicit Program(const ClusterCoordinatorOptions& options, int num_servers = 2)
      : strategy(two_servers(num_servers)), scope(strategy.scope()) {
    begin(options);
  }
  void begin(const ClusterCoordinatorOptions& options) {
    coordinator.emplace(workers, options);
    coordinator->define("count", [this](std::int64_t number) {
      const Tensor one = Tensor::scalar(1, DType::kInt64);
      count.assign_add(one);
      (void)count.value();  // sends the changes made so far
      rows.scatter_add({Tensor::from<std::int64_t>({1}, {1}),
                        Tensor::from<std::int64_t>({1}, {number % kRows}), Shape{kRows}});
      return number * number;
    });
    coordinator->define("wait", [this] { gate.pass(); });
    coordinator->start();
  }
  std::int64_t next() const { return static_cast<std::int64_t>(coordinator->num_scheduled()); }
  RemoteValue schedule() { return coordinator->schedule("count", next()); }
  void count_more(int number) {
    for (int i = 0; i < number; ++i) (void)schedule();
    coordinator->join();
  }
  void expect_counted(std::int64_t closures) {
    EXPECT_EQ(count.value().item_int(), closures);
    const std::vector<double> by_row = rows.value().to_doubles();
    for (int row = 0; row < kRows; ++row) {
      EXPECT_EQ(by_row[static_cast<std::size_t>(row)], (closures - row + kRows - 1) / kRows) << row;
    }
  }
  void kill_worker(int index) {
    testing::MortalWorker& worker = testing::mortal_worker(*coordinator, index);
    worker.kill();
    worker.restart();
  }

  testing::Gate gate;
  ParameterServerStrategy strategy;
  const Scope scope;
  testing::MortalWorkers workers{strategy};
  Variable count{Tensor::scalar(0, DType::kInt64), VariableOptions{.name = "count"}};
  Variable rows{Tensor::full({kRows}, 0.0, DType::kInt64), VariableOptions{.name = "rows"}};
  std::optional<ClusterCoordinator> coordinator;
};

/// Runs 3,000 closures. A worker, the coordinator or the program is killed 30 times in all, even
/// during saves. A killed program continues from a checkpoint version.
TEST(JobCheckpoint, CountsAreExactAfterRandomKills) {
  const HangWatchdog watchdog("random kills", 600s);
  const std::string folder = empty_folder();
  const LogLines quiet(LogLevel::kWarning);
  constexpr std::int64_t kClosures = 3000, kKills = 30;
  const RandomStream random({.seed = 20});
  std::array<int, 3> num_killed{};
  auto program = std::make_unique<Program>(kept_in(folder, 5ms));
  for (std::uint64_t kill = 0; kill < kKills;) {
    (void)program->schedule();
    if (random.below(static_cast<std::uint64_t>(program->next()), 60) != 0) continue;
    const auto kind = static_cast<std::size_t>(random.below(1000 + 2 * kill, 3));
    const auto victim = static_cast<int>(random.below(1001 + 2 * kill, 3));
    ++num_killed[kind], ++kill;
    if (kind == 0) {
      program->kill_worker(victim);
    } else if (kind == 1) {
      program->coordinator.reset();
      program->begin(kept_in(folder, 5ms));
    } else {
      program = nullptr;
      program = std::make_unique<Program>(kept_in(folder, 5ms));
    }
  }
  while (program->next() < kClosures) (void)program->schedule();
  program->coordinator->join();
  program->expect_counted(kClosures);
  for (const int each : num_killed) EXPECT_GE(each, 3);
  // When a coordinator without unfinished closures is destroyed, it saves everything.
  program = nullptr;
  program = std::make_unique<Program>(kept_in(folder));
  EXPECT_EQ(program->next(), kClosures);
  program->expect_counted(kClosures);
}

TEST(JobCheckpoint, ServerLossRollsBackAndRepeatsClosures) {
  const HangWatchdog watchdog("lost servers", 300s);
  const std::string folder = empty_folder();
  const LogLines lines(LogLevel::kWarning);
  ServerProcesses processes(2);
  CountingJob job(processes, 0.2);
  ClusterCoordinator coordinator = job.begin(folder, 30ms);
  std::vector<RemoteValue> values;
  for (int kill = 0; kill < 12; ++kill) {
    for (int i = 0; i < 40; ++i) values.push_back(CountingJob::schedule(coordinator));
    if (kill % 4 == 3) coordinator.save_checkpoint();
    job.replace(kill % 2);
    // In every third round, the other server is replaced, too, while the job recovers.
    if (kill % 3 == 2) job.replace(1 - kill % 2);
  }
  coordinator.join();
  job.expect_counted(12 * 40);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].fetch<std::int64_t>(), static_cast<std::int64_t>(i * i));
  }
  EXPECT_THAT(lines.text(), HasSubstr("ps 0: killed: rolling all servers back to the checkpoint"));
}

/// A value that has been read is never rolled back: after a loss, a read waits until the lost
/// closures have been repeated.
TEST(JobCheckpoint, ReadAfterJoinSeesAllJoinedClosures) {
  const HangWatchdog watchdog("reads after join", 120s);
  const LogLines quiet(LogLevel::kWarning);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(empty_folder());
  for (int turn = 1; turn <= 5; ++turn) {
    CountingJob::count_more(coordinator, 30);
    job.replace(turn % 2);
    job.expect_counted(30 * turn);
  }
}

/// The save waits until the closures that had finished before the loss have run again.
TEST(JobCheckpoint, DurableJoinSavesAllFinishedClosures) {
  const HangWatchdog watchdog("a version during recovery", 120s);
  const std::string folder = empty_folder();
  const LogLines quiet(LogLevel::kWarning);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(folder, 1h);
  for (int turn = 1; turn <= 5; ++turn) {
    // Schedules enough closures that a save might begin before the lost ones have been repeated.
    CountingJob::count_more(coordinator, 400);
    job.replace(turn % 2);
    coordinator.join({.durable = true});
    EXPECT_EQ(versions_in(folder).first, 400 * turn);
  }
}

TEST(JobCheckpoint, CoordinatorShutdownAfterServerLossSavesAllClosures) {
  const HangWatchdog watchdog("coordinator shutdown after a server loss", 120s);
  const std::string folder = empty_folder();
  const LogLines quiet(LogLevel::kWarning);
  for (int turn = 1; turn <= 4; ++turn) {
    ServerProcesses processes(2);
    CountingJob job(processes);
    {
      ClusterCoordinator coordinator = job.begin(folder, 1h);
      CountingJob::count_more(coordinator, 30);
      job.replace(turn % 2);
      const auto& closures = internal::CoordinatorTestAccess::closures(coordinator);
      const bool are_queued_again = turn % 2 == 0;
      while (are_queued_again && closures.generation() % 2 == 0) Clock::system().sleep_for(100us);
    }
    EXPECT_EQ(versions_in(folder).first, 30 * turn);
  }
}

/// Some losses are reported just as a recovery ends.
TEST(JobCheckpoint, RecoversFromServerLossesInRapidSuccession) {
  const HangWatchdog watchdog("server losses in rapid succession", 120s);
  const LogLines quiet(LogLevel::kError);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(empty_folder(), 1h);
  std::atomic<bool> ends{false};
  const auto notes = Executor::system().start("notes", [&] {
    while (!ends.load()) (void)job.server_group()->note_loss("ps 0: reported as killed");
  });
  const auto& closures = internal::CoordinatorTestAccess::closures(coordinator);
  while (closures.generation() < 300) Clock::system().sleep_for(1ms);
  ends.store(true);
  notes->join();
  CountingJob::count_more(coordinator, 30);
  job.expect_counted(30);
}

TEST(JobCheckpoint, UnreportedServerRestartIsDetected) {
  const HangWatchdog watchdog("an unreported server restart", 120s);
  const LogLines lines(LogLevel::kWarning);
  testing::Gate gate;
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(empty_folder());
  CountingJob::count_more(coordinator, 20);
  processes.kill(1), processes.start(1);  // the next checkpoint detects this restart
  coordinator.join({.durable = true});
  job.expect_counted(20);
  EXPECT_THAT(lines.text(), HasSubstr("was started again"));
}

TEST(JobCheckpoint, WorkerLossDoesNotCauseRollback) {
  const HangWatchdog watchdog("loss of a worker", 60s);
  const LogLines lines(LogLevel::kWarning);
  Program program(kept_in(empty_folder()));
  for (int i = 0; i < 100; ++i) (void)program.schedule();
  program.kill_worker(1);
  program.coordinator->join();
  program.expect_counted(100);
  EXPECT_EQ(lines.text().find("rolling all servers back"), std::string::npos);
  EXPECT_EQ(internal::CoordinatorTestAccess::closures(*program.coordinator).generation(), 1u);
}

TEST(JobCheckpoint, ServerLossWithoutCheckpointFolderFailsRun) {
  const HangWatchdog watchdog("no folder", 60s);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin("");
  CountingJob::count_more(coordinator, 10);
  job.kill(1);
  EXPECT_ERROR(coordinator.join(), kUnavailable, "ps 1: killed", "checkpoint_folder");
  EXPECT_ERROR(CountingJob::schedule(coordinator), kUnavailable, "ps 1: killed");
}

TEST(JobCheckpoint, ServerLossBeforeStartFailsStart) {
  const HangWatchdog watchdog("before start", 60s);
  ServerProcesses processes(2);
  CountingJob job(processes);
  job.kill(0);
  EXPECT_ERROR(job.begin(empty_folder()), kUnavailable, "start", "ps 0: killed");
}

TEST(JobCheckpoint, FirstSaveFailsIfRestartedServerIsEmpty) {
  const HangWatchdog watchdog("empty server", 60s);
  ServerProcesses processes(2);
  CountingJob job(processes);
  processes.kill(0), processes.start(0);
  const std::string folder = empty_folder();
  EXPECT_ERROR(job.begin(folder), kFailedPrecondition, "'number 0'", "ps 0", "found none");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

/// No closure repeats a change made outside closures, so a rollback would lose it silently.
TEST(JobCheckpoint, ServerLossWithUnsavedChangesOutsideClosuresFailsRun) {
  const HangWatchdog watchdog("outside changes", 60s);
  const LogLines quiet(LogLevel::kError);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(empty_folder());
  const auto add_outside = [&] {
    job.servers().change_together(
        [&] {
          job.servers().change(0, internal::AssignShard{CountingJob::number(0).id(), AssignOp::kAdd,
                                                        Tensor::scalar(5, DType::kInt64)});
        },
        "number 0");
  };
  CountingJob::count_more(coordinator, 10);
  add_outside();
  coordinator.save_checkpoint();
  job.replace(0);
  EXPECT_EQ(job.read(0, CountingJob::number(0)).item_int(), 15);
  EXPECT_EQ(job.read(1, CountingJob::number(1)).item_int(), 10);
  add_outside();
  EXPECT_EQ(job.read(0, CountingJob::number(0)).item_int(), 20);
  job.replace(1);
  EXPECT_ERROR(job.read(0, CountingJob::number(0)), kDataLoss, "ps 1: killed",
               "changed outside closures", "save_checkpoint()");
  EXPECT_ERROR(coordinator.join(), kDataLoss, "changed outside closures");
}

TEST(JobCheckpoint, NextVersionContainsChangesOutsideClosures) {
  const HangWatchdog watchdog("outside changes are saved", 60s);
  const std::string folder = empty_folder();
  {
    Program program(kept_in(folder));
    program.count.assign(1000.0);
  }
  Program program(kept_in(folder));
  EXPECT_EQ(program.count.value().item_int(), 1000);
  program.count_more(1);
  EXPECT_EQ(program.count.value().item_int(), 1001);
}

TEST(JobCheckpoint, VersionIsReadableAsOrdinaryCheckpoint) {
  const HangWatchdog watchdog("an ordinary checkpoint", 60s);
  const std::string folder = empty_folder();
  {
    ParameterServerOptions options = two_servers(3);
    options.variable_partitioner = FixedShardsPartitioner(3);
    ParameterServerStrategy strategy(options);
    const auto scope = strategy.scope();
    Variable table(Tensor::zeros({8, 2}), {.name = "table"});
    ClusterCoordinator coordinator(strategy, kept_in(folder));
    coordinator.define("fill", [&] {
      table.assign(
          Tensor::from<float>({8, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    });
    coordinator.start();
    (void)coordinator.schedule("fill");
    coordinator.join({.durable = true});
    EXPECT_EQ(versions_in(folder), std::pair(std::int64_t{1}, std::int64_t{0}));
  }
  const auto newest = list_checkpoints(folder).back();
  EXPECT_TRUE(verify_checkpoint(newest.path).empty());
  Variable table(Tensor::zeros({8, 2}), {.name = "table"});
  Checkpoint checkpoint;
  checkpoint.add({table});
  checkpoint.restore(newest.path, {.ignore_unknown = true});
  EXPECT_EQ(table.value().to_doubles()[15], 15.0);
}

TEST(JobCheckpoint, KeepsLastTwoVersions) {
  const HangWatchdog watchdog("two versions", 60s);
  const std::string folder = empty_folder();
  Program program(kept_in(folder));
  for (int i = 1; i <= 4; ++i) {
    program.count_more(5);
    program.coordinator->save_checkpoint();
  }
  EXPECT_EQ(versions_in(folder), std::pair(std::int64_t{20}, std::int64_t{15}));
}

TEST(JobCheckpoint, SavesWhenRetainedArgumentsExceedLimit) {
  const HangWatchdog watchdog("held arguments", 60s);
  const std::string folder = empty_folder();
  ParameterServerStrategy strategy(two_servers());
  const auto scope = strategy.scope();
  Variable sum(Tensor(0.0f), {.name = "sum"});
  ClusterCoordinatorOptions options = kept_in(folder, 1h);
  options.most_held_bytes = 100'000;
  ClusterCoordinator coordinator(strategy, options);
  coordinator.define("add", [&](const Tensor& by) { sum.assign_add(reduce_sum(by)); });
  coordinator.start();
  for (int i = 0; i < 60; ++i) (void)coordinator.schedule("add", Tensor::ones({1000}));  // 4 KB
  coordinator.join();
  const auto& closures = internal::CoordinatorTestAccess::closures(coordinator);
  while (closures.num_held_bytes() >= 100'000) Clock::system().sleep_for(1ms);
  EXPECT_GE(versions_in(folder).first, 20);
  EXPECT_EQ(sum.value().to_doubles()[0], 60'000.0);
}

TEST(JobCheckpoint, LongClosureDelaysCheckpointAndIsLogged) {
  const HangWatchdog watchdog("a long closure", 60s);
  const LogLines lines(LogLevel::kWarning);
  Program program(kept_in(empty_folder(), 20ms));
  const RemoteValue waits = program.coordinator->schedule("wait");
  program.gate.expect_inside(1);
  const RemoteValue short_one = program.schedule();
  (void)short_one.fetch<std::int64_t>();
  while (lines.text().find(" s for closure 0 on worker") == std::string::npos) {
    Clock::system().sleep_for(1ms);
  }
  EXPECT_ERROR(program.coordinator->save_checkpoint(deadline_after(Clock::system().now(), 20ms)),
               kDeadlineExceeded, "closure 0 on worker");
  program.gate.open();
  program.coordinator->join({.durable = true});
  EXPECT_EQ(waits.state(), RemoteValueState::kReady);
}

TEST(JobCheckpoint, DamagedVersionIsSkippedAndLoggedAsError) {
  const HangWatchdog watchdog("a damaged version", 60s);
  const std::string folder = empty_folder();
  {
    Program program(kept_in(folder));
    program.count_more(10);
    program.coordinator->save_checkpoint();
    program.count_more(10);
  }
  const auto damage = [](const std::string& version) {
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(version)) {
      if (file.path().extension() == ".safetensors") files.push_back(file.path());
    }
    for (const auto& file : files) {
      std::string bytes = read_file(file);
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_file_atomically(file, bytes);
    }
  };
  damage(folder + "/step_20");
  const LogLines lines(LogLevel::kError);
  {
    Program program(kept_in(folder, 1h));
    EXPECT_EQ(program.next(), 10);
    program.expect_counted(10);
    EXPECT_THAT(lines.text(), HasSubstr("step_20"));
    program.count_more(10);
    program.expect_counted(20);
  }
  for (const auto& each : list_checkpoints(folder)) damage(each.path);
  EXPECT_ERROR(Program(kept_in(folder)), kDataLoss, "step_");
}

TEST(JobCheckpoint, FullDiskPreventsCheckpointButNotTraining) {
  const HangWatchdog watchdog("full disk", 60s);
  const std::string folder = empty_folder();
  const LogLines lines(LogLevel::kWarning);
  {
    Program program(kept_in(folder, 1h));
    program.count_more(20);
    file_faults::arm(folder, file_faults::Action::kNoSpace, 1, 1000);
    EXPECT_ERROR(program.coordinator->save_checkpoint(), kResourceExhausted, folder);
    file_faults::disarm();
    EXPECT_THAT(lines.text(), HasSubstr("could not save a checkpoint"));
    program.count_more(20);
    program.expect_counted(40);
    program.coordinator->save_checkpoint();
  }
  Program program(kept_in(folder));
  EXPECT_EQ(program.next(), 40);
  program.expect_counted(40);
}

/// Saving delays closures, so a failed save is not retried at once, even if the arguments retained
/// for retries exceed their limit.
TEST(JobCheckpoint, FailedSaveIsNotRetriedImmediately) {
  const HangWatchdog watchdog("full disk with held arguments", 60s);
  const std::string folder = empty_folder();
  const LogLines lines(LogLevel::kWarning);
  ClusterCoordinatorOptions options = kept_in(folder, 1h);
  options.most_held_bytes = 1000;
  Program program(options);
  file_faults::arm(folder, file_faults::Action::kNoSpace, 1, 1'000'000);
  program.count_more(40);
  Clock::system().sleep_for(300ms);
  file_faults::disarm();
  int num_tries = 0;
  constexpr std::string_view kWarning = "could not save a checkpoint";
  const std::string text = lines.text();
  for (auto at = text.find(kWarning); at != std::string::npos; at = text.find(kWarning, at + 1)) {
    ++num_tries;
  }
  EXPECT_GE(num_tries, 1);
  EXPECT_LE(num_tries, 2);
}

/// In each round, the disk fails at a later call, and sometimes also while the failed save is being
/// cleaned up. The next save succeeds.
TEST(JobCheckpoint, DiskFailureLosesAtMostOneVersion) {
  const HangWatchdog watchdog("a disk that fails", 120s);
  const std::string folder = empty_folder();
  const LogLines quiet(LogLevel::kInfo);
  ServerProcesses processes(2);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(folder, 1h);
  for (int call = 1, counted = 0; call < 60; ++call) {
    CountingJob::count_more(coordinator, 1), ++counted;
    file_faults::arm(folder, file_faults::Action::kIoError, call, call + call % 3);
    try {
      coordinator.save_checkpoint();
    } catch (const Error&) {
    }
    file_faults::disarm();
    if (call % 4 == 0) job.replace(call % 2);
    CountingJob::count_more(coordinator, 1), ++counted;
    EXPECT_NO_THROW(coordinator.save_checkpoint()) << "call " << call;
    EXPECT_EQ(versions_in(folder).first, counted) << "call " << call;
    job.expect_counted(counted);
  }
}

/// A repeated closure can fail, for example because its worker's dataset has ended.
TEST(JobCheckpoint, FailureOfRepeatedClosureIsReportedAsDataLoss) {
  const HangWatchdog watchdog("a closure that fails the second time", 60s);
  const LogLines quiet(LogLevel::kError);
  ServerProcesses processes(1);
  CountingJob job(processes);
  ClusterCoordinator coordinator = job.begin(empty_folder(), 1h);
  CountingJob::count_more(coordinator, 10);
  job.fails_from_now_on = true;
  job.replace(0);
  EXPECT_ERROR(job.read(0, CountingJob::number(0)), kDataLoss, "had finished", "was repeated");
}

TEST(JobCheckpoint, FolderOfDifferentProgramIsRejected) {
  const HangWatchdog watchdog("another program", 60s);
  const std::string folder = empty_folder();
  { const Program program(kept_in(folder)); }
  {
    ParameterServerStrategy strategy(two_servers());
    const auto scope = strategy.scope();
    const Variable other(Tensor::zeros({2, 2}), {.name = "other"});
    ClusterCoordinator coordinator(strategy, kept_in(folder));
    EXPECT_ERROR(coordinator.start(), kFailedPrecondition, "variable 'other'", "found none",
                 "a different folder for each program");
  }
  EXPECT_ERROR(Program(kept_in(folder), 1), kFailedPrecondition, "'rows'", "on ps 0", "on ps 1");
  const std::string ordinary = empty_folder("_ordinary");
  CheckpointManager(Checkpoint(), ordinary).save(1);
  EXPECT_ERROR(Program(kept_in(ordinary)), kFailedPrecondition,
               "not the checkpoint of a coordinator");
}

TEST(JobCheckpoint, TwoCoordinatorsCannotShareFolder) {
  const HangWatchdog watchdog("two coordinators", 60s);
  const LogLines quiet(LogLevel::kWarning);
  const std::string folder = empty_folder();
  ServerProcesses processes(1), others(1);
  CountingJob job(processes), other_job(others);
  ClusterCoordinator first = job.begin(folder), second = other_job.begin(folder);
  CountingJob::count_more(first, 1), CountingJob::count_more(second, 2);
  first.save_checkpoint();
  EXPECT_ERROR(second.save_checkpoint(), kFailedPrecondition, "step_1", "another coordinator",
               "a separate folder for each job");
}

TEST(JobCheckpoint, CreatingSlotInClosureFails) {
  const HangWatchdog watchdog("a slot", 60s);
  ParameterServerStrategy strategy(two_servers());
  const auto scope = strategy.scope();
  Variable weights(Tensor::zeros({4}), {.name = "weights"});
  ClusterCoordinator coordinator(strategy);
  coordinator.define("slot", [&] { (void)weights.storage().create_slot("momentum", 0.0); });
  coordinator.start();
  (void)coordinator.schedule("slot");
  EXPECT_ERROR(coordinator.join(), kFailedPrecondition, "'momentum'", "created in a closure",
               "before ClusterCoordinator::start()");
}

TEST(JobCheckpoint, InvalidOptionsAreRejected) {
  const HangWatchdog watchdog("options", 60s);
  EXPECT_ERROR(Program(kept_in(empty_folder(), 0s)), kInvalidArgument, "checkpoint_interval");
  Program program(kept_in(""));
  program.count_more(1);
  EXPECT_ERROR(program.coordinator->save_checkpoint(), kFailedPrecondition, "checkpoint_folder");
  EXPECT_ERROR(program.coordinator->join({.durable = true}), kFailedPrecondition,
               "checkpoint_folder");
}

/// Servers remember the first coordinator's closures, so the second coordinator's closures need
/// different ids.
TEST(JobCheckpoint, LaterCoordinatorsContinueClosureNumbers) {
  const HangWatchdog watchdog("several coordinators", 60s);
  const LogLines quiet(LogLevel::kWarning);
  const std::string first = empty_folder("_1"), second = empty_folder("_2");
  ServerProcesses processes(2);
  CountingJob job(processes);
  const auto count_in = [&](const std::string& folder, std::int64_t before, int more,
                            bool loses_server) {
    ClusterCoordinator coordinator = job.begin(folder);
    EXPECT_EQ(coordinator.num_scheduled(), static_cast<std::uint64_t>(before));
    CountingJob::count_more(coordinator, more);
    if (loses_server) job.replace(1);
    job.expect_counted(before + more);
  };
  count_in("", 0, 20, false);
  count_in(first, 20, 20, true);
  count_in(second, 40, 20, true);  // continues with the servers' values
  count_in(first, 40, 20, true);   // restores version 40 from `first`
  count_in("", 60, 20, false);
}

}  // namespace tutti::job_checkpoint
