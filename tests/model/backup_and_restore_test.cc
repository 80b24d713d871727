// BackupAndRestore: a fit that is interrupted anywhere and started again ends with the same bits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/model_checkpoint.h"

#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "tests/model/model_helpers.h"

namespace tutti::backup_tests {
namespace {

using namespace model_tests;

constexpr std::int64_t kRows = 22;  // batches of 4: five and a ragged one
constexpr std::int64_t kBatches = 6;
constexpr std::int64_t kEpochs = 3;

/// Ends fit with an error at the `number`-th moment (of a batch's begin, of its end, of an epoch's
/// end) of this process's life, before other callbacks see it.
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
  std::string folder = "";  // empty: without BackupAndRestore
};

/// What a finished run leaves.
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

/// One life of the program: nothing when it is interrupted.
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

/// Interrupts one life after the other, each at its `interrupt_at`-th moment, until one ends.
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

TEST(BackupAndRestoreTest, EveryBatchSavedAndInterruptedAnywhere) {
  for (const std::int64_t at : {3, 5, 12, 13, 14, 27}) {
    expect_bits_of_a_calm_run({.save_freq = 1}, at);
  }
}

TEST(BackupAndRestoreTest, EveryThirdBatchUnderSeveralReplicas) {
  for (const std::int64_t at : {7, 12, 13}) {
    expect_bits_of_a_calm_run({.strategy = "two", .save_freq = 3}, at);
  }
}

TEST(BackupAndRestoreTest, EachEpochByDefault) {
  for (const std::int64_t at : {13, 14, 26}) expect_bits_of_a_calm_run({}, at);
}

TEST(BackupAndRestoreTest, EpochsThatAreNoPassesGoOnInTheMiddleOfAPass) {
  for (const std::int64_t at : {5, 9, 12}) {
    expect_bits_of_a_calm_run({.save_freq = 2, .steps_per_epoch = 4}, at);
    expect_bits_of_a_calm_run({.save_freq = 1, .steps_per_epoch = kBatches + 2}, at);
  }
}

TEST(BackupAndRestoreTest, SeveralStepsPerExecution) {
  for (const std::int64_t at : {4, 5, 7}) {
    expect_bits_of_a_calm_run({.save_freq = 2, .steps_per_execution = 4}, at);
  }
}

TEST(BackupAndRestoreTest, AStopOfAnotherCallbackIsKept) {
  for (const std::int64_t at : {13, 20, 25}) {
    expect_bits_of_a_calm_run({.save_freq = 1, .patience = 1}, at);
  }
}

TEST(BackupAndRestoreTest, WithoutDeletingNothingIsLeftToDo) {
  const std::string folder = empty_folder();
  Program run{.delete_checkpoint = false, .folder = folder + "/backup"};
  const auto first = live(run, folder + "/log.csv", -1);
  const auto second = live(run, folder + "/log.csv", 0);  // not a single batch
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
}

TEST(BackupAndRestoreTest, ADamagedVersionIsPassedOverForTheOneBefore) {
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
  ASSERT_EQ(damaged, 1) << "expected two versions, of steps 8 and 9";
  const auto left = live(run, folder + "/log.csv", -1);
  ASSERT_TRUE(left && calm);
  EXPECT_EQ(*left, *calm);
}

TEST(BackupAndRestoreTest, AnotherBatchSizeIsRefusedWithinAnEpoch) {
  const std::string folder = empty_folder();
  std::vector<double> rows;  // that training has seen
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
  EXPECT_ERROR(train(2, 5), kCancelled, "interrupted");  // in batch 2
  rows.clear();
  EXPECT_ERROR(train(4, -1), kFailedPrecondition, "global batches of 2 rows", "got 4");
  EXPECT_THAT(rows, ::testing::IsEmpty());
  train(2, -1);
  EXPECT_THAT(rows, ::testing::Contains(11.0));
}

TEST(BackupAndRestoreTest, MistakesAreNamed) {
  EXPECT_ERROR(BackupAndRestore(""), kInvalidArgument, "expected a folder");
  EXPECT_ERROR(BackupAndRestore("x", {.save_freq = 0}), kInvalidArgument, "positive save_freq");
  const std::string folder = empty_folder();
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.loss = "mse"});
  EXPECT_ERROR((void)model.fit_checkpoint(), kFailedPrecondition, "fit() is not running");
  const Tensor ones = Tensor::full({2, 1}, 1.0);
  const BackupAndRestoreOptions kept{.delete_checkpoint = false};
  model.fit(ones, ones, {.callbacks = {BackupAndRestore(folder, kept)}, .verbose = kSilent});
  EXPECT_ERROR(model.fit(ones, ones,
                         {.callbacks = {TerminateOnNaN(), BackupAndRestore(folder, kept)},
                          .verbose = kSilent}),
               kInvalidArgument, "expected the state of 2 callbacks, got that of 1");
}

TEST(BackupAndRestoreTest, HistoryAndLogsKeepTheirBitsAsJson) {
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

}  // namespace
}  // namespace tutti::backup_tests
