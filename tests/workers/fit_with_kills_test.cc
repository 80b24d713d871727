// Tests training in processes that are killed at an arbitrary batch, or requested to stop, and then
// restarted: the result is bit-identical to that of an uninterrupted run.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests::fit_with_kills_test {

constexpr std::int64_t kEpochs = 3;
/// Number of the earliest event at which a run is killed. By then, the fourth batch is finished,
/// and the save after the second batch is committed, because the save after the fourth batch waited
/// for that commit.
constexpr std::int64_t kEarliest = 8;

/// Callback that sends SIGKILL to its process at event number `moment` (the first is 0) of this
/// run, or never if `moment` is negative. Events are the beginning and end of each training batch,
/// the end of each validation batch, and the end of each epoch.
class KillsItself : public Callback {
 public:
  explicit KillsItself(std::int64_t moment) : left_(moment) {}
  void on_train_batch_begin(std::int64_t) override { count(); }
  void on_train_batch_end(std::int64_t, const Logs&) override { count(); }
  void on_test_batch_end(std::int64_t, const Logs&) override { count(); }
  void on_epoch_end(std::int64_t, const Logs&) override { count(); }

 private:
  void count() {
    if (left_-- == 0) ::raise(SIGKILL);
  }

  std::int64_t left_;
};

Dataset examples() {
  const Tensor x = random_uniform({26, 4}, {.seed = 11}, -1.0, 1.0);
  const Tensor y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  return Dataset::from_tensor_slices({x, y});
}

/// Trains a model. "kill_at" lists, for each run, the event at which worker "victim" is killed.
TUTTI_PROCESS_FUNCTION(fit_that_is_killed) {
  set_random_seed(5);
  const ScopedWorkers strategy;
  Sequential model(Input{{4}}, Dense(6, {.activation = "relu"}), BatchNormalization(),
                   Dropout(0.25), Dense(3));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.05},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  const auto& moments = arguments.at("kill_at").as_array();
  const auto life =
      static_cast<std::size_t>(arguments.at("life").as_int() + testing::num_restarts());
  const bool is_victim = this_process().index == arguments.at("victim").as_int();
  FitOptions fit{.epochs = kEpochs, .verbose = Verbosity::kSilent};
  fit.validation_data = examples().batch(8);
  fit.callbacks = {
      KillsItself(is_victim && life < moments.size() ? moments[life].as_int() : -1),
      EarlyStopping({.patience = kEpochs, .restore_best_weights = true}),
      ReduceLROnPlateau({.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 0.4})};
  std::int64_t batches = 0;
  const Json* const stop_at = arguments.find("stop_at");
  const auto is_asked_to_stop = [&] {
    if (!stop_at || !is_victim || ++batches < stop_at->as_int()) return false;
    // Gives the workers time, before training ends, to agree on when to stop.
    Clock::system().sleep_for(std::chrono::milliseconds(200));
    return true;
  };
  std::shared_ptr<BackupAndRestore> backup;
  if (const Json* const folder = arguments.find("folder")) {
    // Each worker has a separate folder, as if the workers shared no disk.
    backup = std::make_shared<BackupAndRestore>(
        concat(folder->as_string(), "/", this_process().index),
        stop_at ? BackupAndRestoreOptions{.save_freq = 2, .stop_requested = is_asked_to_stop}
                : BackupAndRestoreOptions{.save_freq = 2});
    fit.callbacks.push_back(backup);
  }
  fit.stop_on_signals = arguments.find("signal_at") != nullptr;
  if (fit.stop_on_signals && is_victim) {
    const auto raise_signal = [&, at = arguments.at("signal_at").as_int()](std::int64_t) {
      if (++batches == at) ::raise(SIGINT);
      // Gives the workers time, before training ends, to agree on when to stop.
      if (batches > at) Clock::system().sleep_for(std::chrono::milliseconds(200));
    };
    fit.callbacks.push_back(LambdaCallback({.on_train_batch_begin = raise_signal}));
  } else if (fit.stop_on_signals) {
    // A resumed run needs the same number of callbacks.
    fit.callbacks.push_back(LambdaCallback({}));
  }
  const History history = model.fit(examples().shuffle(26, 7).batch(4), fit);
  if (backup && backup->stopped()) return Json(model.optimizer().iterations().value().item_int());
  if (backup && !backup->restored())
    fail(ErrorCode::kInternal,
         "fit_that_is_killed: expected the last run to restore a backup, got none");
  return Json::object()
      .set("weights_hash", hash_variables(model.variables()))
      .set("slots_hash", hash_variables(model.optimizer().state_variables()))
      .set("history", history.to_json());
}

Json arguments_of(const std::vector<std::int64_t>& kill_at, std::int64_t victim) {
  Json moments = Json::array();
  for (const std::int64_t moment : kill_at) moments.push_back(moment);
  return Json::object().set("kill_at", std::move(moments)).set("victim", victim).set("life", 0);
}

std::vector<Json> results_of_fit(const MultiProcessOptions& options, const Json& arguments) {
  return results_of("fit_that_is_killed", options, arguments);
}

/// Returns random but reproducible event numbers at which runs are killed.
std::vector<std::int64_t> random_moments(std::uint64_t seed, int count) {
  std::vector<std::int64_t> moments;
  for (const double chance : random_uniform({count}, {.seed = seed}, 0.0, 11.0).to_doubles()) {
    moments.push_back(kEarliest + static_cast<std::int64_t>(chance));
  }
  return moments;
}

/// Restarts all processes after each kill, and compares the result with that of an uninterrupted
/// run.
void expect_that_a_backup_gives_the_bits_of_a_calm_run(int num_workers, std::int64_t victim) {
  const MultiProcessOptions options{.num_workers = num_workers};
  const std::vector<Json> calm = results_of_fit(options, arguments_of({}, 0));
  const std::string folder = new_folder("fit_backup");
  const std::vector<std::int64_t> moments = random_moments(17, 3);
  Json arguments = arguments_of(moments, victim);
  arguments.set("folder", folder);
  for (std::size_t life = 0; life < moments.size(); ++life) {
    arguments.set("life", static_cast<std::int64_t>(life));
    MultiProcessRunner runner("fit_that_is_killed", options, arguments);
    runner.start();
    EXPECT_THROW(runner.join(), Error) << "life " << life;
  }
  EXPECT_TRUE(std::filesystem::exists(folder + "/0"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/1")) << "expected only the chief to write";
  arguments.set("life", static_cast<std::int64_t>(moments.size()));
  EXPECT_EQ(results_of_fit(options, arguments), calm) << "killed at " << join(moments);
  EXPECT_FALSE(std::filesystem::exists(folder + "/0")) << "expected the backup to be deleted";
}

TEST(FitFaultTolerance, RestartFromBackupMatchesUninterruptedRun) {
  expect_that_a_backup_gives_the_bits_of_a_calm_run(1, 0);
}

TEST(FitFaultTolerance, ChiefBackupRestoresAllWorkers) {
  expect_that_a_backup_gives_the_bits_of_a_calm_run(2, 1);
  expect_that_a_backup_gives_the_bits_of_a_calm_run(2, 0);
}

TEST(FitFaultTolerance, WorkersStopAfterSameBatchAndResume) {
  const MultiProcessOptions options{.num_workers = 2};
  const std::vector<Json> calm = results_of_fit(options, arguments_of({}, 0));
  Json arguments = arguments_of({}, 1);
  arguments.set("folder", new_folder("fit_stop")).set("stop_at", 4);
  const std::vector<Json> stopped = results_of_fit(options, arguments);
  ASSERT_EQ(stopped.size(), 2u);
  EXPECT_EQ(stopped[0], stopped[1]);
  EXPECT_GE(stopped[0].as_int(), 4);
  arguments.set("stop_at", 1000);
  EXPECT_EQ(results_of_fit(options, arguments), calm)
      << "stopped after batch " << stopped[0].dump();
}

TEST(FitFaultTolerance, SignalToOneWorkerStopsAllAndTrainingResumes) {
  const MultiProcessOptions options{.num_workers = 2};
  const std::vector<Json> calm = results_of_fit(options, arguments_of({}, 0));
  Json arguments = arguments_of({}, 1);
  arguments.set("folder", new_folder("fit_signal")).set("signal_at", 4);
  const std::vector<Json> stopped = results_of_fit(options, arguments);
  ASSERT_EQ(stopped.size(), 2u);
  EXPECT_EQ(stopped[0], stopped[1]);
  EXPECT_GE(stopped[0].as_int(), 4);
  arguments.set("signal_at", 1000);
  EXPECT_EQ(results_of_fit(options, arguments), calm)
      << "stopped after batch " << stopped[0].dump();
}

TEST(FitFaultTolerance, RestartedWorkerReceivesStateFromPeer) {
  const std::vector<Json> calm = results_of_fit({.num_workers = 2}, arguments_of({}, 0));
  const MultiProcessOptions options{
      .num_workers = 2, .environment = {{"TUTTI_MAX_RESTARTS", "100"}}, .auto_restart = true};
  for (const std::uint64_t seed : {1u, 2u}) {
    const std::vector<std::int64_t> moments = random_moments(seed, 3);
    EXPECT_EQ(results_of_fit(options, arguments_of(moments, 1)), calm)
        << "killed at " << join(moments);
  }
}

constexpr int kWorkers = 3;
constexpr std::int64_t kStepsPerEpoch = 20;
constexpr std::int64_t kReady = kStepsPerEpoch + 3;  // number of steps before SIGTERM is sent
constexpr int kRestartCode = 75;

/// Trains; v grows by 1 per replica and step. Returns the steps and v at the start and at the end,
/// or exits with the session's code if it is not 0.
TUTTI_PROCESS_FUNCTION(workers_that_are_preempted) {
  const std::string folder = arguments.at("folder").as_string();
  const ScopedWorkers strategy;
  Variable v = counter("v");
  const Variable weight(Tensor::zeros({}), {.name = "weight"});
  const Sgd optimizer(std::vector<Variable>{weight});
  DistributedDataset batches =
      strategy->distribute_dataset(Dataset::range(kStepsPerEpoch * kWorkers).batch(kWorkers));
  const bool is_resumed = std::filesystem::exists(folder);
  TrainingSession session(
      *strategy, {v, weight}, optimizer, batches,
      {.epochs = kEpochs, .checkpoint_dir = folder, .resume = is_resumed, .show_progress = false});
  Json result = Json::object()
                    .set("first", session.record().steps())
                    .set("v_at_first", v.value().item_double());
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : batches) {
        strategy->run([&v](const Batch&) { v.assign_add(Tensor(1.0f)); }, batch);
        if (!is_resumed && session.record().steps() == kReady) std::puts("in the second epoch");
        // Gives the workers time, before training ends, to agree on a step.
        if (!is_resumed && session.record().steps() >= kReady) {
          Clock::system().sleep_for(std::chrono::milliseconds(100));
        }
        if (!session.step(0.0f, kWorkers)) break;
      }
      session.end_epoch("v", v.value().item_double());
    }
  });
  if (const int code = session.finish(); code != 0) std::_Exit(code);
  return result.set("steps", session.record().steps()).set("v", v.value().item_double());
}

/// Returns the names of the versions in `folder`, such as "step_20".
std::vector<std::string> versions_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

TEST(Preemption, AllWorkersSaveSameStepAfterSigtermToOne) {
  const std::string folder = new_folder("preempted");
  const Json arguments = Json::object().set("folder", folder);
  std::int64_t stopped_at = 0;
  {
    MultiProcessRunner runner("workers_that_are_preempted", {.num_workers = kWorkers}, arguments);
    runner.start();
    runner.wait_for_line("worker", 0, "in the second epoch");
    const int victim = ::getpid() % kWorkers;
    RecordProperty("victim", victim);
    runner.send("worker", victim, SIGTERM);
    EXPECT_THROW(runner.join(), Error);  // the workers exit with a non-zero code
    for (int worker = 0; worker < kWorkers; ++worker) {
      EXPECT_EQ(runner.exit_status("worker", worker).code, kRestartCode) << "worker " << worker;
    }
    const std::vector<std::string> versions = versions_in(folder);
    ASSERT_EQ(versions.size(), 2u) << join(versions);  // saved after epoch 0 and at the stop
    EXPECT_EQ(versions[0], concat("step_", kStepsPerEpoch));
    stopped_at = std::stoll(versions[1].substr(std::string("step_").size()));
    EXPECT_GT(stopped_at, kReady);
    EXPECT_LT(stopped_at, kEpochs * kStepsPerEpoch);
  }
  for (const Json& result : results_of("workers_that_are_preempted", kWorkers, arguments)) {
    EXPECT_EQ(result.at("first").as_int(), stopped_at);
    EXPECT_EQ(result.at("v_at_first").as_double(), static_cast<double>(kWorkers * stopped_at));
    EXPECT_EQ(result.at("steps").as_int(), kEpochs * kStepsPerEpoch);
    EXPECT_EQ(result.at("v").as_double(), kWorkers * kEpochs * kStepsPerEpoch);
  }
}

}  // namespace tutti::worker_tests::fit_with_kills_test
