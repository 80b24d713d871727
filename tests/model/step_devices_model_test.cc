// Tests models whose steps run on devices other than the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tests/support/fake_gpu.h"
#include "tutti/model/layers/losses.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::step_devices_model_test {
using namespace model_tests;

std::unique_ptr<Strategy> parameter_server(const char* devices, int replicas = 0) {
  ParameterServerOptions options;
  options.local = {.devices = devices, .replicas = replicas};
  options.num_servers = 2;
  return std::make_unique<ParameterServerStrategy>(std::move(options));
}

std::vector<std::unique_ptr<Strategy>> strategies() {
  std::vector<std::unique_ptr<Strategy>> all = several_strategies();
  all.push_back(std::make_unique<OneDeviceStrategy>("cpu:2"));
  all.push_back(central("cpu:0-2"));
  all.push_back(parameter_server("cpu:0-1"));
  return all;
}

Device here() { return ReplicaContext::current().device(); }

const std::vector<const char*> kInitializers = {
    "zeros",     "ones",          "glorot_uniform",  "glorot_normal", "he_uniform",
    "he_normal", "lecun_uniform", "lecun_normal",    "orthogonal",    "identity",
    "uniform",   "normal",        "truncated_normal"};

const std::vector<const char*> kLosses = {"categorical_crossentropy",
                                          "binary_crossentropy",
                                          "binary_focal_crossentropy",
                                          "categorical_focal_crossentropy",
                                          "huber",
                                          "mean_squared_error",
                                          "mean_absolute_error",
                                          "mean_absolute_percentage_error",
                                          "mean_squared_logarithmic_error",
                                          "cosine_similarity",
                                          "log_cosh",
                                          "hinge",
                                          "squared_hinge",
                                          "categorical_hinge",
                                          "kl_divergence",
                                          "poisson"};

TEST(StepDevicesOfModels, InitialValuesAreMadeThere) {
  for (const auto& strategy : strategies()) {
    strategy->run([] {
      for (const char* name : kInitializers) {
        const Tensor made =
            Initializer(name).for_shape({3, 3})(InitializerContext{here(), {.seed = 4}});
        EXPECT_EQ(made.device(), here()) << name;
        EXPECT_EQ((made + Tensor::ones({3})).device(), here()) << name;
      }
    });
  }
}

TEST(StepDevicesOfModels, NoRegularizationLossIsAddedToTheOthers) {
  for (const auto& strategy : strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    const Tensor rows = Tensor::ones({2});
    const auto totals = strategy->run([&] {
      const Tensor none = scale_regularization_loss(std::span<const Tensor>());
      EXPECT_EQ(none.device(), here());
      return compute_average_loss(rows.to(here()), 4) + none +
             compute_average_loss(Tensor::ones({0}), 0);
    });
    for (const Tensor& total : totals) EXPECT_EQ(total.item(), 0.5f);
  }
}

// Labels are captured on the host; predictions are on the replica's device.
TEST(StepDevicesOfModels, LossesTakeCapturedLabelsAndWeights) {
  const Tensor labels = Tensor::from<float>({2, 2}, {1, 0, 0, 1});
  const Tensor predictions = Tensor::from<float>({2, 2}, {0.25f, 0.75f, 0.5f, 0.5f});
  const Tensor classes = Tensor::from<std::int64_t>({2}, {1, 0});
  const Tensor weights = Tensor::from<double>({2}, {1.0, 3.0});
  for (const auto& strategy : strategies()) {
    const auto check = [&](const char* name, const Tensor& y) {
      SCOPED_TRACE(concat(label_of(*strategy), ": ", name));
      const auto value_of = [&](const Tensor& p) {
        return compute_average_loss(Loss(name).per_example(y, p),
                                    {.global_batch_size = 2, .sample_weight = weights});
      };
      const double expected = value_of(predictions).item_double();
      for (const Tensor& value : strategy->run([&] { return value_of(predictions.to(here())); })) {
        EXPECT_EQ(value.item_double(), expected);
      }
    };
    for (const char* name : kLosses) check(name, labels);
    check("sparse_categorical_crossentropy", classes);
  }
}

// Includes metrics without values: every result() can be added to the replica's tensors.
TEST(StepDevicesOfModels, MetricsAreUpdatedWithAndGiveConstants) {
  const Tensor labels = Tensor::from<float>({4}, {1, 0, 1, 0});
  const Tensor predictions = Tensor::from<float>({4}, {0.9f, 0.2f, 0.3f, 0.4f});
  const std::vector<const char*> names = {"auc",
                                          "precision",
                                          "recall",
                                          "true_positives",
                                          "true_negatives",
                                          "binary_accuracy",
                                          "false_positives",
                                          "false_negatives",
                                          "mean_squared_error",
                                          "rmse"};
  for (const auto& strategy : strategies()) {
    const auto scope = strategy->scope();
    for (const char* name : names) {
      SCOPED_TRACE(concat(label_of(*strategy), ": ", name));
      const Loss loss("mean_squared_error");
      const auto metric = MetricSpec(name).make(loss), expected = MetricSpec(name).make(loss);
      const auto sums = strategy->run([&] {
        const Tensor none = cast(metric->result(), DType::kFloat32);
        EXPECT_TRUE((none + Tensor::zeros({1}).to(here())).defined());
        metric->update_state(labels, predictions);
        return cast(metric->result(), DType::kFloat32) + Tensor::zeros({1}).to(here());
      });
      strategy->run([&] { expected->update_state(labels.to(here()), predictions.to(here())); });
      const float value = static_cast<float>(expected->result().item_double());
      for (const Tensor& sum : sums) EXPECT_EQ(sum.item(), value);
    }
    Mean mean("mean");
    Sum sum("sum");
    strategy->run([&] {
      mean.update_state(Tensor(3.0f));
      sum.update_state(Tensor(3.0f));
    });
    EXPECT_EQ(mean.result().item(), 3.0f);
    EXPECT_EQ(sum.result().item(), 3.0f * static_cast<float>(strategy->num_replicas_in_sync()));
  }
}

using testing::FakeGpus;

/// Returns how many of fit's requests to the GPU begin with `what`.
int count_of(const std::vector<std::string>& notes, const std::string& what) {
  return static_cast<int>(std::ranges::count_if(
      notes, [&](const std::string& note) { return note.find(what) != std::string::npos; }));
}

/// Returns the requests of an epoch of `num_steps` steps that follows a first one.
std::vector<std::string> notes_of_epoch(FakeGpus& gpus, std::int64_t num_steps,
                                        const OptimizerSpec& optimizer) {
  OneDeviceStrategy strategy("gpu:0");
  auto scope = strategy.scope();
  Sequential model(Input{{8}}, Dense(6, {.activation = "relu"}), BatchNormalization(), Dropout(0.3),
                   Dense(3));
  model.compile({.optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {"accuracy"}});
  const Tensor x = random_uniform({num_steps * 4, 8}, {.seed = 1}, -1.0, 1.0);
  const Tensor y = Tensor::zeros({num_steps * 4}, DType::kInt64);
  const FitOptions options{.batch_size = 4, .verbose = Verbosity::kSilent};
  model.fit(x, y, options);
  gpus.take_notes();
  model.fit(x, y, options);
  return gpus.take_notes();
}

TEST(GpuSteps, FitWaitsForTheGpuOncePerEpochHoweverManySteps) {
  FakeGpus gpus;
  AdamOptions optimizer;
  optimizer.clipping.global_clipnorm = 1.0;
  const auto few = notes_of_epoch(gpus, 2, optimizer), many = notes_of_epoch(gpus, 7, optimizer);
  EXPECT_GT(count_of(few, "copy_to_host"), 0);  // the logs of the epoch
  EXPECT_EQ(count_of(many, "copy_to_host"), count_of(few, "copy_to_host"));
  EXPECT_EQ(count_of(many, "synchronize"), 0);
}

TEST(GpuSteps, AllVariablesAreUpdatedByOneLaunchAndMemoryComesFromTheCache) {
  FakeGpus gpus;
  const auto notes = notes_of_epoch(gpus, 5, SgdOptions{.learning_rate = 0.01});
  EXPECT_EQ(count_of(notes, " update "), 5);
  EXPECT_EQ(count_of(notes, concat(" update ", static_cast<int>(DeviceRuleId::kSgd), " x6")), 5);
  const auto of_adam = notes_of_epoch(gpus, 5, "adam");
  EXPECT_EQ(count_of(of_adam, " allocate "), 0);
}

}  // namespace tutti::step_devices_model_test
