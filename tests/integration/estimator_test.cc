// Tests estimators: training, evaluation and prediction with checkpoints, hooks and warm starts.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "tests/support/thrown.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

namespace tutti::estimator_tests::estimator_test {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Returns an empty folder for this test.
std::string own_folder() {
  const fs::path folder = fs::temp_directory_path() / "estimator_test";
  fs::remove_all(folder);
  return folder.string();
}

std::shared_ptr<Strategy> mirrored(int replicas) {
  return std::make_shared<MirroredStrategy>(
      LocalStrategyOptions{.devices = "cpu:0", .replicas = replicas});
}

EstimatorSpec line_with_dropout(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential model(Input{{1}}, Dense(8, "tanh"), Dropout(0.25), Dense(1));
  const Tensor y = model(features, {.training = mode == EstimatorMode::kTrain});
  if (mode == EstimatorMode::kPredict) return {.predictions = y};
  return {.loss = losses::mean_squared_error(labels, y),
          .optimizer = AdamOptions{.learning_rate = 0.01},
          .eval_metrics = {{"mae", losses::mean_absolute_error(labels, y)}}};
}

/// Returns a dataset of features 0, 1, ..., `count` - 1, each with twice its value as the label, in
/// batches of `rows`.
Dataset numbers_of(std::int64_t rows, std::int64_t count = 12) {
  Tensor x = reshape(arange(static_cast<float>(count)), {count, 1});
  return Dataset::from_tensor_slices(x, x * 2.0f).batch(rows);
}

std::vector<std::vector<double>> values_of(const Estimator& estimator) {
  std::vector<std::vector<double>> values;
  for (const Variable& each : estimator.variables()) values.push_back(each.value().to_doubles());
  return values;
}

TEST(EstimatorTest, ResumeMatchesUninterruptedRunBitForBit) {
  const auto input = [] { return numbers_of(6, 6).repeat(); };  // the same batch in each step
  const std::string folder = own_folder();
  Estimator straight(line_with_dropout,
                     {.model_dir = folder + "/a", .train_distribute = mirrored(2)});
  straight.train(input, {.steps = 6});
  Estimator begun(line_with_dropout, {.model_dir = folder + "/b", .train_distribute = mirrored(2)});
  begun.train(input, {.steps = 2});
  EXPECT_NE(values_of(begun), values_of(straight));
  Estimator resumed(line_with_dropout,
                    {.model_dir = folder + "/b", .train_distribute = mirrored(2)});
  resumed.train(input, {.steps = 1}).train(input, {.max_steps = 6});
  EXPECT_EQ(resumed.global_step(), 6);
  EXPECT_EQ(values_of(resumed), values_of(straight));
  resumed.train(input, {.max_steps = 6});  // these steps are already finished
  EXPECT_EQ(values_of(resumed), values_of(straight));
}

// Model function with fixed weights: y = 3 x.
EstimatorSpec three_times(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential layer(Input{{1}}, Dense(1, {.use_bias = false, .kernel_initializer = "ones"}));
  const Tensor y = layer(features) * 3.0f;
  if (mode == EstimatorMode::kPredict) return {.predictions = y};
  return {.loss = losses::mean_squared_error(labels, y),
          .optimizer = SgdOptions{.learning_rate = 0.0},
          .eval_metrics = {{"error", y - labels}}};
}

TEST(EstimatorTest, EvaluatesAndPredictsUnderDifferentStrategy) {
  Estimator estimator(three_times, {.model_dir = own_folder(), .eval_distribute = mirrored(2)});
  const auto data = [] { return numbers_of(3, 10); };  // batches of 3, 3, 3, 1 rows
  EXPECT_ERROR(estimator.evaluate(data), kNotFound);
  estimator.train(data, {.steps = 2});
  const Logs logs = estimator.evaluate(data);
  EXPECT_DOUBLE_EQ(logs.at("loss"), 28.5);  // mean of x^2 for x = 0, ..., 9
  EXPECT_DOUBLE_EQ(logs.at("error"), 4.5);
  EXPECT_EQ(logs.at("global_step"), 2.0);
  EXPECT_DOUBLE_EQ(estimator.evaluate(data, {.steps = 1}).at("error"), 2.5);  // mean of 0 to 5
  std::vector<double> expected;
  for (int x = 0; x < 10; ++x) expected.push_back(3.0 * x);
  EXPECT_EQ(estimator.predict(data).to_doubles(), expected);
  EXPECT_FALSE(fs::is_empty(estimator.model_dir() + "/eval"));
}

class Counter : public SessionRunHook {
 public:
  void begin(SessionRunContext& context) override { begun = context.global_step; }
  void after_run(SessionRunContext&) override { ++runs; }
  void end(SessionRunContext& context) override { ended = context.global_step; }
  std::int64_t begun = -1, runs = 0, ended = -1;
};

TEST(EstimatorTest, HooksObserveStepsAndStopTraining) {
  Estimator estimator(line_with_dropout, {.model_dir = own_folder(),
                                          .save_checkpoints_steps = 2,
                                          .save_summary_steps = 1,
                                          .log_step_count_steps = 1});
  const auto counter = std::make_shared<Counter>();
  const auto stop = std::make_shared<StopAtStepHook>(StopAtStepHook::Options{.num_steps = 3});
  const auto input = [] { return numbers_of(4).repeat(); };
  estimator.train(input, {.hooks = {counter, stop}}).train(input, {.hooks = {counter, stop}});
  EXPECT_EQ(counter->begun, 3);
  EXPECT_EQ(counter->runs, 6);
  EXPECT_EQ(counter->ended, 6);
  std::vector<std::string> names;
  bool has_events = false;
  for (const auto& entry : fs::directory_iterator(estimator.model_dir())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_")) names.push_back(name);
    has_events = has_events || name.starts_with("events.out.tfevents");
  }
  EXPECT_EQ(names.size(), 4u) << join(names);  // of steps 2, 3, 5 and 6
  EXPECT_TRUE(has_events);
  EXPECT_INVALID(StopAtStepHook({}));
}

TEST(EstimatorTest, NanLossThrowsErrorOrStopsTraining) {
  const auto input = [] { return numbers_of(4).repeat(); };
  const ModelFn diverges = [](const Tensor& x, const Tensor& labels, EstimatorMode mode) {
    EstimatorSpec spec = line_with_dropout(x, labels, mode);
    spec.loss = spec.loss * std::numeric_limits<float>::infinity();
    return spec;
  };
  Estimator estimator(diverges, {.model_dir = own_folder()});
  EXPECT_ERROR(estimator.train(input, {.steps = 3}), kOutOfRange,
               "Estimator::train: the loss of step 1");
  const auto ends = std::make_shared<NanTensorHook>(false);
  SessionRunContext context;
  context.loss = std::numeric_limits<double>::quiet_NaN();
  ends->after_run(context);
  EXPECT_TRUE(context.is_asked_to_stop);
}

TEST(EstimatorTest, WarmStartLoadsWeightsOnce) {
  const std::string folder = own_folder();
  const auto input = [] { return numbers_of(4).repeat(); };
  Estimator first(line_with_dropout, {.model_dir = folder + "/first"});
  first.train(input, {.steps = 5});
  const ModelFn holds = [](const Tensor& x, const Tensor& labels, EstimatorMode mode) {
    EstimatorSpec spec = line_with_dropout(x, labels, mode);
    spec.optimizer = SgdOptions{.learning_rate = 0.0};
    return spec;
  };
  Estimator second(holds, {.model_dir = folder + "/second"}, folder + "/first");
  second.train(input, {.steps = 2});
  EXPECT_EQ(second.global_step(), 2);
  EXPECT_EQ(values_of(second), values_of(first));
  first.train(input, {.steps = 1});
  second.train(input, {.steps = 1});  // resumes from the estimator's own checkpoint
  EXPECT_NE(values_of(second), values_of(first));
}

TEST(EstimatorTest, TrainAndEvaluateRunsEvaluationAfterCheckpoints) {
  Estimator estimator(line_with_dropout, {.model_dir = own_folder(), .save_checkpoints_steps = 4});
  std::vector<std::int64_t> evaluated;
  const EvalSpec eval{.input_fn = [&] {
    evaluated.push_back(estimator.global_step());
    return numbers_of(4);
  }};
  const Logs logs = train_and_evaluate(
      estimator, {.input_fn = [] { return numbers_of(4).repeat(); }, .max_steps = 10}, eval);
  EXPECT_EQ(evaluated.size(), 3u);
  EXPECT_EQ(logs.at("global_step"), 10.0);
  const Logs again = train_and_evaluate(
      estimator, {.input_fn = [] { return numbers_of(4).repeat(); }, .max_steps = 10}, eval);
  EXPECT_EQ(again.at("loss"), logs.at("loss"));
}

TEST(EstimatorTest, ErrorsDescribeUserMistakes) {
  const std::string folder = own_folder();
  const auto input = [] { return numbers_of(4).repeat(); };
  int calls = 0;
  const ModelFn changes = [&](const Tensor& x, const Tensor& labels, EstimatorMode) {
    Sequential layer(Input{{1}}, Dense(1, {.name = ++calls > 2 ? "other" : "layer"}));
    return EstimatorSpec{.loss = losses::mean_squared_error(labels, layer(x)), .optimizer = "sgd"};
  };
  Estimator changing(changes, {.model_dir = folder + "/a"});
  EXPECT_ERROR(changing.train(input, {.steps = 3}), kFailedPrecondition, "layer/kernel",
               "other/kernel");
  const ModelFn without = [](const Tensor& x, const Tensor&, EstimatorMode) {
    return EstimatorSpec{.loss = x};
  };
  Estimator no_optimizer(without, {.model_dir = folder + "/b"});
  EXPECT_THAT(thrown::coded_error_of([&] { no_optimizer.train(input, {.steps = 1}); }),
              HasSubstr("no optimizer"));
  EXPECT_THAT(thrown::coded_error_of([&] { no_optimizer.train(input, {.steps = 0}); }),
              HasSubstr("steps"));
  EXPECT_THAT(thrown::coded_error_of([&] {
                const auto strategy = mirrored(1);
                const auto scope = strategy->scope();
                changing.train(input, {.steps = 1});
              }),
              HasSubstr("outside of scopes"));
  EXPECT_THAT(thrown::coded_error_of([&] { Estimator(without, {}); }), HasSubstr("model_dir"));
}

TEST(EstimatorTest, InfiniteInputWithoutStepLimitIsRejected) {
  const auto endless = [] { return numbers_of(4).repeat(); };
  const ModelFn line = [](const Tensor& x, const Tensor& labels, EstimatorMode mode) {
    Sequential layer(Input{{1}}, Dense(1));
    const Tensor y = layer(x);
    if (mode == EstimatorMode::kPredict) return EstimatorSpec{.predictions = y};
    return EstimatorSpec{.loss = losses::mean_squared_error(labels, y), .optimizer = "sgd"};
  };
  Estimator estimator(line, {.model_dir = own_folder()});
  EXPECT_INVALID(estimator.train(endless), "never does", ".steps");
  const auto hook = std::make_shared<StopAtStepHook>(StopAtStepHook::Options{.num_steps = 2});
  estimator.train(endless, {.hooks = {hook}});
  EXPECT_EQ(estimator.global_step(), 2);
  EXPECT_THAT(thrown::coded_error_of([&] { estimator.evaluate(endless); }),
              HasSubstr("never does"));
  EXPECT_THAT(thrown::coded_error_of([&] { estimator.predict(endless); }), HasSubstr("never does"));
  EXPECT_EQ(estimator.evaluate(endless, {.steps = 3}).at("global_step"), 2.0);
}

/// Returns a strategy with two servers and two workers, all in this process.
std::shared_ptr<Strategy> coordinated() {
  return std::make_shared<ParameterServerStrategy>(ParameterServerOptions{
      .local = {.devices = "cpu:0"}, .num_servers = 2, .num_workers = 2, .coordinated = true});
}

/// Model function whose updates each decrease the single weight by 1, so the weight counts updates.
EstimatorSpec counts_updates(const Tensor& features, const Tensor&, EstimatorMode mode) {
  Sequential layer(Input{{1}}, Dense(1, {.use_bias = false, .kernel_initializer = "zeros"}));
  const Tensor y = layer(features);
  if (mode == EstimatorMode::kPredict) return {.predictions = y};
  return {.loss = reduce_sum(y, 1), .optimizer = SgdOptions{.learning_rate = 1.0}};
}

Dataset ones(std::int64_t batches) {
  return Dataset::from_tensor_slices({Tensor::ones({2 * batches, 1})}).batch(2);
}

TEST(EstimatorTest, ClientTrainsOnServingWorkers) {
  const auto input = [] { return ones(3).repeat(); };
  Estimator client(counts_updates, {.model_dir = own_folder(),
                                    .train_distribute = coordinated(),
                                    .save_checkpoints_steps = 10,
                                    .keep_checkpoint_max = 0});
  EXPECT_EQ(client.serve(input), std::nullopt);
  client.train_on_workers({.max_steps = 25});
  EXPECT_EQ(client.global_step(), 25);
  EXPECT_EQ(values_of(client), (std::vector<std::vector<double>>{{-25.0}}));
  client.train_on_workers({.steps = 5}).train_on_workers({.max_steps = 30});
  EXPECT_EQ(client.global_step(), 30);
  // A checkpoint's name contains its number of updates, even if it was saved between steps.
  int num_checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(client.model_dir())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step_")) continue;
    ++num_checkpoints;
    const Logs logs =
        client.evaluate([] { return ones(1); }, {.checkpoint_path = entry.path().string()});
    EXPECT_EQ(-logs.at("loss"), std::stod(name.substr(5))) << name;
  }
  EXPECT_GE(num_checkpoints, 4);  // steps 10 (or slightly later), 20, 25 and 30
  // An estimator with a different strategy resumes from the client's checkpoint.
  Estimator alone(counts_updates, {.model_dir = client.model_dir()});
  alone.train(input, {.steps = 1});
  EXPECT_EQ(values_of(alone), (std::vector<std::vector<double>>{{-31.0}}));
}

TEST(EstimatorTest, ClientStopsWhenWorkerDataEnds) {
  Estimator client(counts_updates, {.model_dir = own_folder(), .train_distribute = coordinated()});
  (void)client.serve([] { return ones(6); });
  client.train_on_workers();
  EXPECT_GE(client.global_step(), 6);  // implies that at least one worker ran out of data
  EXPECT_LE(client.global_step(), 12);
  EXPECT_EQ(values_of(client)[0][0], -static_cast<double>(client.global_step()));
}

TEST(EstimatorTest, ClientRequiresServingWorkers) {
  const auto input = [] { return ones(1); };
  Estimator none(counts_updates, {.model_dir = own_folder(), .train_distribute = coordinated()});
  EXPECT_THAT(thrown::coded_error_of([&] { none.train_on_workers(); }),
              HasSubstr("expected serve() to be called first"));
  Estimator local(counts_updates, {.model_dir = own_folder(), .train_distribute = mirrored(2)});
  EXPECT_THAT(thrown::coded_error_of([&] { (void)local.serve(input); }),
              HasSubstr("expected a ParameterServerStrategy"));
  EXPECT_THAT(thrown::coded_error_of([&] { (void)none.serve([] { return ones(0); }); }),
              HasSubstr("got none from input_fn"));
}

}  // namespace tutti::estimator_tests::estimator_test
