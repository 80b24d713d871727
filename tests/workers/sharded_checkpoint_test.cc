// Tests sharded checkpoints of worker processes: crashes during a save, folders and memory use.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "tests/support/file_faults.h"
#include "tests/workers/worker_processes.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::worker_tests::sharded_checkpoint_test {

using file_faults::Action;

std::unique_ptr<FullyShardedStrategy> connect() {
  return std::make_unique<FullyShardedStrategy>(*resolver_from_environment(),
                                                FullyShardedOptions{.local = {.devices = "cpu:0"}});
}

Variable weights(std::int64_t count) {
  return Variable(Tensor::zeros({count}), {.name = "w", .aggregation = VariableAggregation::kMean});
}

/// Saves ones, then twos; worker 1 dies during a file operation of the second save.
TUTTI_PROCESS_FUNCTION(worker_1_ends_while_it_saves) {
  const std::string folder = arguments.at("folder").as_string();
  const auto strategy = connect();
  const auto scope = strategy->scope();
  Variable w = weights(1 << 20);
  CheckpointManager manager(Checkpoint({w}, checkpoint_options(*strategy)), folder,
                            {.asynchronous = arguments.at("asynchronous").as_bool()});
  w.assign(1.0);
  if (this_process().index == 1) file_faults::arm(folder, Action::kCount);
  manager.save(1);
  manager.wait();
  const auto num_calls = static_cast<int>(file_faults::calls().size());
  if (this_process().index == 1) {
    EXPECT_GT(num_calls, 5);
    file_faults::arm(folder, Action::kKill, arguments.at("first").as_bool() ? 1 : num_calls);
  }
  w.assign(2.0);
  try {
    manager.save(2);
    manager.wait();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), ::testing::AnyOf(HasSubstr("worker 1"), HasSubstr("rank 1")));
    return Json(to_string(error.code()));
  }
  return Json("saved");
}

TEST(ShardedCheckpoint, CrashDuringSaveKeepsPreviousVersion) {
  for (const bool first : {true, false}) {
    const std::string folder = new_folder("dies");
    MultiProcessRunner runner(
        "worker_1_ends_while_it_saves", {.num_workers = 2},
        Json::Object{{"folder", folder}, {"first", first}, {"asynchronous", first}});
    runner.start();
    EXPECT_THROW(runner.join(), Error);  // worker 1 was killed
    ASSERT_EQ(runner.result().return_values.size(), 1u);
    EXPECT_NE(runner.result().return_values[0].as_string(), "saved");
    const auto versions = list_checkpoints(folder);
    ASSERT_EQ(versions.size(), 1u);  // no file of the second save remains
    EXPECT_EQ(versions[0].step, 1);
    EXPECT_THAT(verify_checkpoint(versions[0].path), ::testing::IsEmpty());
    Variable w = weights(1 << 20);
    EXPECT_EQ(CheckpointManager(Checkpoint({w}), folder).restore_latest()->step, 1);
    EXPECT_THAT(w.value().to_doubles(), ::testing::Each(1.0));
  }
}

constexpr std::int64_t kElements = 4 << 20;  // 16 MiB
constexpr double kWholeMiB = 3 * 16;         // the variable and Adam's two slots

/// Returns the peak memory during `work` minus the memory in use before it, in MiB.
double peak_of(const std::function<void()>& work) {
  const Device device{};
  reset_peak_memory(device);
  const std::size_t before = device_memory(device).in_use;
  work();
  return static_cast<double>(device_memory(device).peak - before) / (1 << 20);
}

TUTTI_PROCESS_FUNCTION(memory_of_saving_and_restoring) {
  const auto strategy = connect();
  const auto scope = strategy->scope();
  Variable w = weights(kElements);
  Adam optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1});
  Checkpoint all({w}, checkpoint_options(*strategy));
  all.add(optimizer.state_variables());
  CheckpointManager manager(all, arguments.at("folder").as_string(),
                            {.sharded = arguments.at("sharded").as_bool()});
  const double saving = peak_of([&] { manager.save(1); });
  const double restoring = peak_of([&] { manager.restore_latest(); });
  return Json::object().set("saving", saving).set("restoring", restoring);
}

TEST(ShardedCheckpoint, SaveAndRestoreNeverHoldWholeModel) {
  for (const bool sharded : {true, false}) {
    for (const Json& result :
         results_of("memory_of_saving_and_restoring", 4,
                    Json::Object{{"folder", new_folder("memory")}, {"sharded", sharded}})) {
      if (sharded) {
        EXPECT_LT(result.at("saving").as_double(), 1.0);  // shards share memory with the variables
        EXPECT_LT(result.at("restoring").as_double(), kWholeMiB / 4 + 5);
      } else {
        EXPECT_GE(result.at("saving").as_double(), kWholeMiB);
        EXPECT_GE(result.at("restoring").as_double(), kWholeMiB);
      }
    }
  }
}

/// Adds 1 in each of eight steps and saves in the background after each step. Worker 1 dies in its
/// first run, possibly while the save of the previous step is still running.
TUTTI_PROCESS_FUNCTION(recovery_during_saves) {
  const auto strategy = connect();
  const auto scope = strategy->scope();
  Variable w = weights(1 << 18);
  std::int64_t step = 0;
  const Checkpoint state =
      recoverable(Checkpoint({w}, checkpoint_options(*strategy)), *strategy, step);
  CheckpointManager manager(state, arguments.at("folder").as_string(),
                            {.max_to_keep = 2,
                             .asynchronous = true,
                             .on_error = OnSaveError::kContinue,
                             .sharded = true});
  Recovery recovery(*strategy, state);
  recovery.run([&] {
    while (step < 8) {
      strategy->run([&] {
        if (step == 4 && this_process().index == 1 && testing::num_restarts() == 0) ::_exit(7);
        w.assign_add(1.0);
      });
      recovery.commit(++step);
      manager.save(step);
    }
  });
  manager.wait();
  const auto info = manager.restore_latest({.strict = true});
  return Json::object()
      .set("step", info ? info->step : -1)
      .set("value", w.value().to_doubles().back());
}

TEST(ShardedCheckpoint, RecoverySucceedsDuringBackgroundSaves) {
  const auto results = results_of("recovery_during_saves", {.num_workers = 3, .auto_restart = true},
                                  Json::Object{{"folder", new_folder("recovery")}});
  ASSERT_EQ(results.size(), 3u);
  for (const Json& result : results) {
    EXPECT_EQ(result.at("step").as_int(), 8);
    EXPECT_EQ(result.at("value").as_double(), 8.0);
  }
}

}  // namespace tutti::worker_tests::sharded_checkpoint_test
