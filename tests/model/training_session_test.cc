// Tests training that is interrupted at any point and restarted: with TrainingSession, and with
// BackupAndRestore in fit.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/training/training_session.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tests/support/scopes.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/model/model_checkpoint.h"

namespace tutti::testing::training_session_test {

struct Outcome {
  int code = 0;
  std::int64_t steps = 0;
  std::vector<float> losses;
  Tensor weight;
};

/// Trains on 12 rows in batches of 3. Before each step, calls `before_step`, if given, with the
/// number of completed steps.
Outcome train(TrainingSessionOptions options,
              const std::function<void(std::int64_t)>& before_step = {},
              bool shows_progress = false) {
  set_random_seed(4);
  options.show_progress = shows_progress;
  options.keep_losses = true;
  MirroredStrategy strategy("cpu:0-1");
  const Tensor x = random_uniform({12, 2}, {.seed = 1});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices(x, x.sum(1)).shuffle(12, /*seed=*/2).batch(3));
  const auto scope = strategy.scope();
  const Variable w(Tensor{0.f, 0.f}, {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1, .momentum = 0.9});
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor error = reduce_sum(batch.features() * w.value(), 1) - batch.labels();
    const Tensor loss = square(error).sum() / static_cast<double>(batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  TrainingSession session(strategy, {w}, optimizer, batches, options);
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : batches) {
        if (before_step) before_step(session.record().steps());
        const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
        if (!session.step(loss.item(), batch[0].global_rows())) break;
      }
      session.end_epoch("error", w.value().sum().item());
    }
  });
  const int code = session.finish();
  return {code, session.record().steps(), session.record().losses(), w.value()};
}

TEST(TrainingSession, EndsAfterConfiguredEpochsOrSteps) {
  EXPECT_EQ(train({.epochs = 3}).steps, 12);
  EXPECT_EQ(train({.epochs = 3, .steps = 6}).steps, 6);
  EXPECT_EQ(train({.epochs = 1, .steps = 6}).steps, 4);
  EXPECT_INVALID(train({.steps = -1}), "TrainingSession: steps", "got -1");
}

TEST(TrainingSession, InfiniteDatasetRequiresSteps) {
  MirroredStrategy strategy("cpu:0-1");
  DistributedDataset endless = strategy.distribute_dataset(
      Dataset::from_tensor_slices(Tensor::ones({12, 2}), Tensor::ones({12})).repeat().batch(3));
  const auto scope = strategy.scope();
  const Variable w(Tensor{0.f, 0.f}, {.name = "w"});
  const Sgd optimizer(std::vector<Variable>{w}, {});
  const auto make = [&](std::int64_t steps) {
    return TrainingSession(strategy, {w}, optimizer, endless,
                           {.steps = steps, .show_progress = false});
  };
  EXPECT_INVALID(make(0), "TrainingSession", "never does", ".steps");
  EXPECT_TRUE(make(2).begin_epoch());
}

TEST(TrainingSession, SignalTriggersSaveAndResumedRunIsBitIdentical) {
  const std::string folder = empty_folder();
  const Outcome straight = train({.epochs = 4});
  const std::string checkpoints = folder + "/checkpoints";
  for (const int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove_all(checkpoints);
    const Outcome stopped =
        train({.epochs = 4, .checkpoint_dir = checkpoints}, [&](std::int64_t steps) {
          if (steps == 6) std::raise(signal);
        });
    EXPECT_EQ(stopped.code, 75);
    EXPECT_EQ(stopped.steps, 7);  // the current step is still completed
    const Outcome resumed = train({.epochs = 4, .checkpoint_dir = checkpoints, .resume = true});
    EXPECT_EQ(resumed.code, 0);
    EXPECT_EQ(resumed.steps, straight.steps);
    EXPECT_EQ(resumed.losses, straight.losses);
    expect_same_bits(resumed.weight, straight.weight);
  }
}

TEST(TrainingSession, PrintsStopCauseAndHowToContinue) {
  const std::string checkpoints = empty_folder() + "/checkpoints";
  const auto output_of = [](TrainingSessionOptions options) {
    ::testing::internal::CaptureStdout();
    const auto raise_in_step_7 = [](std::int64_t steps) {
      if (steps == 6) std::raise(SIGTERM);
    };
    EXPECT_EQ(train(options, raise_in_step_7, /*shows_progress=*/true).code, 75);
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string saved = output_of({.epochs = 4, .checkpoint_dir = checkpoints});
  EXPECT_THAT(saved, HasSubstr("stopped    by SIGTERM after step 7, saved in " + checkpoints +
                               "; to continue, set resume\n"));
  EXPECT_THAT(saved, HasSubstr("epoch 1/4  4/4 steps  loss "));
  const std::string own = output_of({.epochs = 4, .save_on_signal = [](std::int64_t) {}});
  EXPECT_THAT(own, HasSubstr("stopped    by SIGTERM after step 7\n"));
}

/// Runs a session whose steps take 1 s and whose grace period is 10 s. Raises SIGTERM at the start
/// of a step if `signals` contains the number of completed steps.
Outcome train_with_grace(TrainingSessionOptions options, const std::vector<std::int64_t>& signals) {
  test_scopes::StepClock clock;
  options.epochs = 6;  // 6 epochs have 24 steps
  options.grace_period = std::chrono::seconds(10);
  options.clock = &clock;
  return train(options, [&](std::int64_t steps) {
    clock.sleep_for(std::chrono::seconds(1));
    if (std::ranges::count(signals, steps) > 0) std::raise(SIGTERM);
  });
}

/// Follows TensorFlow's TerminationConfig(grace_period): save, continue, save again, end.
TEST(TrainingSession, SavesAtSignalAndAgainAtEndOfGracePeriod) {
  const std::string checkpoints = empty_folder() + "/checkpoints";
  const Outcome stopped = train_with_grace({.checkpoint_dir = checkpoints}, {6});
  EXPECT_EQ(stopped.code, 75);
  // The session notices the signal at the end of step 7, after 7 s. The grace period ends at 17 s;
  // with a margin of two steps, the session stops at 15 s.
  EXPECT_EQ(stopped.steps, 15);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_7/model.safetensors.index.json"));
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_15/model.safetensors.index.json"));
  const Outcome straight = train({.epochs = 6});
  const Outcome resumed = train({.epochs = 6, .checkpoint_dir = checkpoints, .resume = true});
  EXPECT_EQ(resumed.losses, straight.losses);
  expect_same_bits(resumed.weight, straight.weight);
}

TEST(TrainingSession, SecondSignalEndsGracePeriod) {
  const std::string checkpoints = empty_folder() + "/checkpoints";
  const Outcome stopped = train_with_grace({.checkpoint_dir = checkpoints}, {6, 9});
  EXPECT_EQ(stopped.code, 75);
  EXPECT_EQ(stopped.steps, 10);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_10/model.safetensors.index.json"));
}

/// Follows TensorFlow's TerminationConfig(save_fn).
TEST(TrainingSession, SignalCallsUserSaveFunction) {
  std::vector<std::int64_t> saved;
  const auto save = [&](std::int64_t steps) { saved.push_back(steps); };
  EXPECT_EQ(train_with_grace({.save_on_signal = save}, {6}).code, 75);
  EXPECT_EQ(saved, (std::vector<std::int64_t>{7, 15}));
  saved.clear();
  const Outcome at_once = train({.epochs = 6, .save_on_signal = save}, [](std::int64_t steps) {
    if (steps == 6) std::raise(SIGTERM);
  });
  EXPECT_EQ(at_once.steps, 7);
  EXPECT_EQ(saved, (std::vector<std::int64_t>{7}));
}

TEST(TrainingSession, GracePeriodRequiresCheckpointOrSaveFunction) {
  EXPECT_INVALID(train({.grace_period = std::chrono::seconds(5)}), "grace_period",
                 "checkpoint_dir or save_on_signal");
}

TEST(TrainingSession, HandlesSignalsOnlyWhileActiveAndSaving) {
  static int received = 0;
  const auto earlier = std::signal(SIGTERM, [](int) { ++received; });
  const std::string folder = empty_folder();
  train({.checkpoint_dir = folder + "/checkpoints"});
  std::raise(SIGTERM);
  EXPECT_EQ(received, 1);
  train({}, [](std::int64_t steps) {
    // without checkpoints, the program's handler remains installed
    if (steps == 1) std::raise(SIGTERM);
  });
  EXPECT_EQ(received, 2);
  std::signal(SIGTERM, SIG_DFL);  // the session must restore the default handler
  train({.checkpoint_dir = folder + "/checkpoints"});
  EXPECT_EQ(std::signal(SIGTERM, earlier), SIG_DFL);
}

TEST(TrainingSession, LogsUserValues) {
  const std::string folder = empty_folder();
  train({.epochs = 2, .log_dir = folder});
  const std::string log = read_file(folder + "/log.jsonl");
  EXPECT_EQ(std::ranges::count(log, '\n'), 8 + 2);
  EXPECT_NE(log.find("\"test_error\""), std::string::npos);
}

TEST(TrainingSession, ResumeRequiresExistingCheckpoint) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(train({.checkpoint_dir = folder, .resume = true}), kNotFound, "TrainingSession",
               folder, "train without resume");
  EXPECT_INVALID(train({.resume = true}), "resume: expected a checkpoint_dir");
}

constexpr std::int64_t kRows = 22;  // batches of 4 rows: five full ones and a partial one
constexpr std::int64_t kBatches = 6;
constexpr std::int64_t kEpochs = 3;

/// Callback that makes fit() fail at event `number`, counted from 0; later callbacks do not receive
/// that event. An event is the beginning or end of a batch, or the end of an epoch.
class Interrupt : public Callback {
 public:
  explicit Interrupt(std::int64_t number) : left_(number) {}
  void on_train_batch_begin(std::int64_t) override { count(); }
  void on_train_batch_end(std::int64_t, const Logs&) override { count(); }
  void on_epoch_end(std::int64_t, const Logs&) override { count(); }

 private:
  void count() {
    if (left_-- == 0) fail(ErrorCode::kCancelled, "interrupted");
  }

  std::int64_t left_;
};

struct Program {
  std::string strategy = "one";
  std::optional<std::int64_t> save_freq = std::nullopt;
  std::optional<std::int64_t> steps_per_epoch = std::nullopt;
  std::int64_t steps_per_execution = 1;
  std::int64_t patience = kEpochs;
  bool delete_checkpoint = true;
  std::string folder = "";  // empty if fit runs without BackupAndRestore
};

/// Results of a finished run: weights, history and logs.
struct Left {
  std::string weights;
  std::string history;
  std::string csv;
  std::optional<std::int64_t> stopped_epoch;
  std::int64_t best_epoch = 0;
  bool operator==(const Left&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Left& left) {
  return out << left.weights << '\n'
             << left.history << '\n'
             << left.csv << "\nstopped " << left.stopped_epoch.value_or(-1) << ", best "
             << left.best_epoch;
}

/// Runs the program once. Returns nullopt if the run is interrupted.
std::optional<Left> live(const Program& run, const std::string& csv, std::int64_t interrupt_at) {
  set_random_seed(5);
  const std::unique_ptr<Strategy> strategy = mirrored(run.strategy == "one" ? "cpu:0" : "cpu:0-1");
  const auto scope = strategy->scope();
  Sequential model(Input{{4}}, Dense(6, {.activation = "relu", .name = "first"}), Dropout(0.25),
                   Dense(3, {.name = "second"}));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.05},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy", "sparse_categorical_crossentropy"},
                 .steps_per_execution = run.steps_per_execution});
  auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
      .patience = run.patience, .mode = MonitorMode::kMax, .restore_best_weights = true});
  FitOptions fit{.epochs = kEpochs, .steps_per_epoch = run.steps_per_epoch, .verbose = kSilent};
  fit.validation_data = three_classes(9).shuffle(9, 3).batch(4);
  if (!run.folder.empty()) {
    fit.callbacks.push_back(BackupAndRestore(
        run.folder, {.save_freq = run.save_freq, .delete_checkpoint = run.delete_checkpoint}));
  }
  fit.callbacks.push_back(Interrupt(interrupt_at));
  fit.callbacks.push_back(stopping);
  fit.callbacks.push_back(
      ReduceLROnPlateau({.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 0.4}));
  fit.callbacks.push_back(CsvLogger(csv));
  try {
    const History history = model.fit(three_classes(kRows).shuffle(kRows, 7).batch(4), fit);
    const std::vector<Variable> slots = model.optimizer().state_variables();
    return Left{hash_variables(model.variables()) + hash_variables(slots), history.to_json().dump(),
                read_file(csv), stopping->stopped_epoch(), stopping->best_epoch()};
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "interrupted");
    return std::nullopt;
  }
}

/// Runs the program repeatedly, interrupting each run at its event `interrupt_at`, until a run
/// finishes. Expects the results of an uninterrupted run.
void expect_bits_of_a_calm_run(Program run, std::int64_t interrupt_at) {
  const std::string folder = empty_folder();
  const auto calm = live(run, folder + "/calm.csv", -1);
  ASSERT_TRUE(calm);
  run.folder = folder + "/backup";
  std::optional<Left> left;
  int lives = 0;
  for (; !left && lives < 100; ++lives) left = live(run, folder + "/log.csv", interrupt_at);
  ASSERT_TRUE(left) << "no progress when interrupted at " << interrupt_at;
  EXPECT_GT(lives, 1);
  EXPECT_EQ(*left, *calm) << "interrupted at " << interrupt_at << ", lives " << lives;
  EXPECT_FALSE(std::filesystem::exists(run.folder));
}

TEST(BackupAndRestoreTest, InterruptedRunMatchesUninterruptedBitwise) {
  const struct {
    const char* name;
    Program run;
    std::vector<std::int64_t> moments;
  } cases[] = {
      {"every batch saved", {.save_freq = 1}, {3, 5, 12, 13, 14, 27}},
      {"every third, several replicas", {.strategy = "two", .save_freq = 3}, {7, 12, 13}},
      {"each epoch by default", {}, {13, 14, 26}},
      {"epochs shorter than a pass", {.save_freq = 2, .steps_per_epoch = 4}, {5, 9, 12}},
      {"longer epochs", {.save_freq = 1, .steps_per_epoch = kBatches + 2}, {5, 9, 12}},
      {"several steps at once", {.save_freq = 2, .steps_per_execution = 4}, {4, 5, 7}},
      {"stopped by another callback", {.save_freq = 1, .patience = 1}, {13, 20, 25}},
  };
  for (const auto& [name, run, moments] : cases) {
    SCOPED_TRACE(name);
    for (const std::int64_t at : moments) expect_bits_of_a_calm_run(run, at);
  }
}

/// Results of a fit() call with stop_on_signals.
struct SignalledFit {
  bool is_stopped = false;
  std::int64_t batches = 0;  // number of batches that this fit() call started
  std::string weights;
  std::string output;
};

/// Trains for 3 epochs of 4 batches with fit(). Raises SIGINT at the beginning of batch `raise_at`,
/// counted from 1 in this call, or never if `raise_at` is 0.
SignalledFit fit_with_signal(std::vector<AnyCallback> callbacks, std::int64_t raise_at) {
  set_random_seed(8);
  Sequential model(Input{{4}}, Dense(3));
  model.compile({.optimizer = "adam", .loss = "sparse_categorical_crossentropy"});
  SignalledFit result;
  callbacks.push_back(LambdaCallback({.on_train_batch_begin = [&](std::int64_t) {
    if (++result.batches == raise_at) std::raise(SIGINT);
  }}));
  ::testing::internal::CaptureStdout();
  model.fit(three_classes(16).shuffle(16, 7).batch(4), {.epochs = 3,
                                                        .callbacks = std::move(callbacks),
                                                        .verbose = Verbosity::kLinePerEpoch,
                                                        .stop_on_signals = true});
  result.output = ::testing::internal::GetCapturedStdout();
  result.is_stopped = model.stopped_by_signal();
  result.weights = hash_variables(model.variables());
  return result;
}

TEST(StopOnSignals, SavesAfterBatchAndResumesBitIdentically) {
  const std::string folder = empty_folder() + "/backup";
  const SignalledFit straight = fit_with_signal({}, 0);
  EXPECT_FALSE(straight.is_stopped);
  for (const std::int64_t raise_at : {1, 6, 8}) {  // 8 is the last batch of an epoch
    SCOPED_TRACE(raise_at);
    const auto backup = std::make_shared<BackupAndRestore>(folder);
    const SignalledFit stopped = fit_with_signal({backup}, raise_at);
    EXPECT_TRUE(stopped.is_stopped);
    EXPECT_TRUE(backup->stopped());
    EXPECT_EQ(stopped.batches, raise_at);
    const SignalledFit resumed = fit_with_signal({BackupAndRestore(folder)}, 0);
    EXPECT_FALSE(resumed.is_stopped);
    EXPECT_EQ(resumed.batches, 12 - raise_at);
    EXPECT_EQ(resumed.weights, straight.weights);
  }
}

TEST(StopOnSignals, ReportsStopPointBackupFolderAndRemedy) {
  const std::string folder = empty_folder() + "/backup";
  EXPECT_THAT(fit_with_signal({BackupAndRestore(folder)}, 6).output,
              ::testing::EndsWith("stopped    by SIGINT after batch 2/4 of epoch 2/3, saved in " +
                                  folder + "; to continue, start the program again\n"));
  EXPECT_THAT(fit_with_signal({}, 3).output,
              ::testing::EndsWith("stopped    by SIGINT after batch 3/4 of epoch 1/3; nothing was "
                                  "saved; use .callbacks = {BackupAndRestore(folder)}\n"));
  EXPECT_INVALID(
      fit_with_signal({BackupAndRestore(folder, {.stop_requested = [] { return false; }})}, 0),
      "a BackupAndRestore without stop_requested");
  (void)::testing::internal::GetCapturedStdout();
}

TEST(StopOnSignals, StopsAtEndOfEpoch) {
  const std::string folder = empty_folder() + "/backup";
  const auto raise_after_epoch = [](std::int64_t epoch, const Logs&) {
    if (epoch == 1) std::raise(SIGINT);
  };
  const SignalledFit stopped = fit_with_signal(
      {BackupAndRestore(folder), LambdaCallback({.on_epoch_end = raise_after_epoch})}, 0);
  EXPECT_TRUE(stopped.is_stopped);
  EXPECT_THAT(stopped.output, ::testing::HasSubstr("SIGINT after epoch 2/3, saved in "));
  EXPECT_EQ(fit_with_signal({BackupAndRestore(folder), LambdaCallback({})}, 0).weights,
            fit_with_signal({}, 0).weights);
}

TEST(StopOnSignals, SignalAfterLastBatchIsHandledByProgram) {
  static int received = 0;
  const auto earlier = std::signal(SIGINT, [](int) { ++received; });
  const auto raise_after_last = [](std::int64_t epoch, const Logs&) {
    if (epoch == 2) std::raise(SIGINT);
  };
  const SignalledFit fit = fit_with_signal({LambdaCallback({.on_epoch_end = raise_after_last})}, 0);
  EXPECT_FALSE(fit.is_stopped);
  EXPECT_EQ(received, 1);
  std::signal(SIGINT, earlier);
}

TEST(BackupAndRestoreTest, FinishedRunWithRetainedCheckpointIsNotTrainedAgain) {
  const std::string folder = empty_folder();
  Program run{.delete_checkpoint = false, .folder = folder + "/backup"};
  const auto first = live(run, folder + "/log.csv", -1);
  const auto second = live(run, folder + "/log.csv", 0);  // no batches are left to train on
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
}

TEST(BackupAndRestoreTest, DamagedVersionFallsBackToPrevious) {
  const std::string folder = empty_folder();
  const auto calm = live({}, folder + "/calm.csv", -1);
  const Program run{.save_freq = 1, .folder = folder + "/backup"};
  ASSERT_FALSE(live(run, folder + "/log.csv", 21));
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run.folder + "/step_9")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
    ++damaged;
  }
  ASSERT_EQ(damaged, 1) << "expected one .safetensors file in step_9";
  const auto left = live(run, folder + "/log.csv", -1);
  ASSERT_TRUE(left && calm);
  EXPECT_EQ(*left, *calm);
}

TEST(BackupAndRestoreTest, RejectsChangedBatchSizeMidEpoch) {
  const std::string folder = empty_folder();
  std::vector<double> rows;  // rows that training received
  const auto train = [&](std::int64_t batch_size, std::int64_t interrupt_at) {
    set_random_seed(5);
    Sequential model(Input{{1}}, Dense(1));
    model.compile({.loss = "mse"});
    const Tensor numbers = cast(arange(0, 12), DType::kFloat32);
    const Dataset data = Dataset::from_tensor_slices(reshape(numbers, {12, 1}), numbers)
                             .map([&](const Element& element) {
                               rows.push_back(element[1].item());
                               return element;
                             })
                             .batch(batch_size);
    model.fit(data,
              {.callbacks = {BackupAndRestore(folder, {.save_freq = 1}), Interrupt(interrupt_at)},
               .verbose = kSilent});
  };
  EXPECT_ERROR(train(2, 5), kCancelled, "interrupted");  // interrupted in batch 2
  rows.clear();
  EXPECT_ERROR(train(4, -1), kFailedPrecondition, "global batches of 2 rows", "got 4");
  EXPECT_THAT(rows, IsEmpty());
  train(2, -1);
  EXPECT_THAT(rows, Contains(11.0));
}

TEST(BackupAndRestoreTest, RejectsInvalidUse) {
  EXPECT_INVALID(BackupAndRestore(""), "expected a folder");
  EXPECT_INVALID(BackupAndRestore("x", {.save_freq = 0}), "positive save_freq");
  const std::string folder = empty_folder();
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.loss = "mse"});
  EXPECT_ERROR((void)model.fit_checkpoint(), kFailedPrecondition, "fit() is not running");
  const Tensor ones = Tensor::full({2, 1}, 1.0);
  const BackupAndRestoreOptions kept{.delete_checkpoint = false};
  model.fit(ones, ones, {.callbacks = {BackupAndRestore(folder, kept)}, .verbose = kSilent});
  EXPECT_INVALID(model.fit(ones, ones,
                           {.callbacks = {TerminateOnNaN(), BackupAndRestore(folder, kept)},
                            .verbose = kSilent}),
                 "expected the state of 2 callbacks, got that of 1");
}

TEST(BackupAndRestoreTest, HistoryAndLogsRoundTripThroughJson) {
  History history;
  Logs logs;
  for (const double value :
       {0.1, -0.0, 1e-300, std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    logs.set(concat("x", logs.entries().size()), value);
  }
  history.append(4, logs);
  const Json json = Json::parse(history.to_json().dump());
  EXPECT_EQ(History::from_json(json).to_json().dump(), history.to_json().dump());
  EXPECT_EQ(History::from_json(json).epochs(), history.epochs());
  EXPECT_TRUE(std::signbit(History::from_json(json).at("x1")[0]));
  EXPECT_EQ(Logs::from_json(Json::parse(logs.to_json().dump())).at("x3"),
            std::numeric_limits<double>::infinity());
}

}  // namespace tutti::testing::training_session_test
