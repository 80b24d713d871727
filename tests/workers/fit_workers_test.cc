// Models in several processes: fit, model files, digests of state, calls of one worker alone.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include "tests/support/multi_process_runner.h"
#include "tutti/tutti.h"

namespace tutti {
namespace fit_workers_test {

using testing::MultiProcessRunner;
using testing::this_process;

/// Predicts 0 and never learns: the loss is the mean of squared labels.
Sequential constant_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse"});
  return model;
}

TUTTI_PROCESS_FUNCTION(fit_that_evaluates) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const History history =
      model.fit(x, x * 3.0f,
                {.epochs = 2,
                 .batch_size = 4,
                 .callbacks = {LambdaCallback({.on_train_batch_end =
                                                   [&](std::int64_t, const Logs&) {
                                                     model.evaluate(x, x * 100.0f);
                                                     model.predict(x);
                                                   }})},
                 .verbose = Verbosity::kSilent});
  return Json::array_of(history["loss"]);
}

TEST(FitWorkers, EvaluateInACallbackLeavesTheLossOfFitAlone) {
  MultiProcessRunner runner("fit_that_evaluates", {.num_workers = 2});
  runner.start();
  for (const Json& losses : runner.join().return_values) {
    ASSERT_EQ(losses.as_array().size(), 2u);
    for (const Json& loss : losses.as_array()) EXPECT_NEAR(loss.as_double(), 9.0, 1e-5);
  }
}

TUTTI_PROCESS_FUNCTION(fit_that_one_worker_stops) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const bool stops = this_process().index == 1;
  LambdaCallbackOptions callback;
  if (arguments.at("moment").as_string() == "epoch") {
    callback.on_epoch_end = [&](std::int64_t, const Logs&) {
      if (stops) model.stop_training();
    };
  } else {
    callback.on_train_batch_end = [&](std::int64_t, const Logs&) {
      if (stops) model.stop_training();
    };
  }
  try {
    model.fit(x, x,
              {.epochs = 3,
               .batch_size = 2,
               .callbacks = {LambdaCallback(callback)},
               .verbose = Verbosity::kSilent});
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(FitWorkers, AStopOfOneWorkerAloneIsNamed) {
  for (const std::string moment : {"epoch", "batch"}) {
    Json arguments = Json::object();
    arguments.set("moment", moment);
    MultiProcessRunner runner("fit_that_one_worker_stops", {.num_workers = 2}, arguments);
    runner.start();
    for (const Json& error : runner.join().return_values) {
      EXPECT_THAT(error.as_string(), ::testing::HasSubstr("stop_training()")) << moment;
      if (moment == "batch") continue;
      EXPECT_THAT(error.as_string(),
                  ::testing::HasSubstr("in epoch 0 on worker 1, not on worker 0"));
    }
  }
}

Dataset three_kinds() {
  const Tensor x = random_uniform({26, 4}, {.seed = 11}, -1.0, 1.0);
  const Tensor y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  return Dataset::from_tensor_slices({x, y}).shuffle(26, 7).batch(4);
}

/// Two epochs, and the hash of all that they leave.
Json train_on(Model& model) {
  const std::int64_t begin = model.epochs_trained();
  model.fit(three_kinds(),
            {.epochs = begin + 2, .initial_epoch = begin, .verbose = Verbosity::kSilent});
  std::vector<Variable> all = model.variables();
  for (const Variable& state : model.optimizer().state_variables()) all.push_back(state);
  return hash_variables(all);
}

TUTTI_PROCESS_FUNCTION(goes_on_from_a_file) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const Scope scope = strategy.scope();
  // Workers other than the chief do not see its disk.
  const std::string folder = concat(arguments.at("folder").as_string(), "/", this_process().index);
  const std::shared_ptr<Model> model = load_model(folder + "/model.safetensors");
  Json result = train_on(*model);
  model->save(folder + "/later.safetensors");
  return result;
}

TEST(ModelFileWorkers, GoOnWithTheBitsOfOneProcess) {
  const std::string folder =
      (std::filesystem::path(::testing::TempDir()) / concat("model-file-workers-", ::getpid()))
          .string();
  MirroredStrategy strategy({.devices = "cpu:0", .replicas = 2});
  const Scope scope = strategy.scope();
  set_random_seed(5);
  Sequential model(Input{{4}}, Dense(6, "relu"), BatchNormalization(), Dropout(0.25), Dense(3));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.05},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  (void)train_on(model);
  model.save(folder + "/0/model.safetensors");
  const Json expected = train_on(model);

  Json arguments = Json::object();
  arguments.set("folder", folder);
  MultiProcessRunner runner("goes_on_from_a_file", {.num_workers = 2}, arguments);
  runner.start();
  EXPECT_THAT(runner.join().return_values, ::testing::ElementsAre(expected, expected));
  EXPECT_TRUE(std::filesystem::exists(folder + "/0/later.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/1")) << "the chief alone writes";
  std::filesystem::remove_all(folder);
}

using ::testing::HasSubstr;

constexpr int kDigestSteps = 3;

/// In place, as a defect of memory does it: whoever shares the buffer sees it.
void flip_a_bit_of(const Variable& variable) {
  const Tensor value = variable.storage().local_components().back();
  const std::span<const std::byte> bytes = value.bytes();
  const_cast<std::byte&>(bytes[bytes.size() / 2]) ^= std::byte{4};
}

/// Trains `steps` steps; after step `flip_after` worker `flip_on` loses a bit. What ended it.
Json train(const std::string& devices, int steps, int flip_after, int flip_on) {
  MultiWorkerMirroredStrategy strategy(
      *resolver_from_environment(),
      MultiWorkerOptions{.local = {.devices = devices}, .digest_steps = kDigestSteps});
  const auto scope = strategy.scope();
  Variable weight(Tensor::zeros({64}), {.name = "weight"});
  Variable bias(Tensor::zeros({8}), {.name = "bias"});
  Adam optimizer(std::vector<Variable>{weight, bias}, {.learning_rate = 0.1});
  Json result = Json::object();
  int step = 0;
  try {
    while (step < steps) {
      strategy.run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)) +
                                     reduce_sum(square(bias.value() + 1.0f)));
      });
      ++step;
      if (step == flip_after && this_process().index == flip_on) flip_a_bit_of(bias);
    }
    result.set("code", "OK");
  } catch (const Error& error) {
    result.set("code", to_string(error.code()));
    result.set("message", error.message());
  }
  result.set("steps", step);
  return result;
}

TUTTI_PROCESS_FUNCTION(digest_flip_of_three) {
  return train("cpu:0", 12, static_cast<int>(arguments.at("after").as_int()), 1);
}
TUTTI_PROCESS_FUNCTION(digest_flip_of_two) { return train("cpu:0-1", 12, 4, 0); }
TUTTI_PROCESS_FUNCTION(digest_calm) { return train("cpu:0-1", 12, 0, -1); }

TEST(StateDigest, FlippedBitIsReportedWithWorkerAndVariable) {
  for (const int after : {3, 4, 5}) {
    MultiProcessRunner runner("digest_flip_of_three", {.num_workers = 3},
                              Json::parse(concat("{\"after\": ", after, "}")));
    runner.start();
    const auto& values = runner.join().return_values;
    ASSERT_EQ(values.size(), 3u);
    for (const Json& value : values) {
      EXPECT_EQ(value.at("code").as_string(), "DATA_LOSS") << value.dump();
      EXPECT_EQ(value.at("steps").as_int(), 5);  // found in the sixth, at most kDigestSteps later
      const std::string message = value.at("message").as_string();
      EXPECT_THAT(message, HasSubstr("after step 6: the workers' values of 'bias"));
      EXPECT_THAT(message, HasSubstr("differ: worker 1 has "));
      EXPECT_THAT(message, HasSubstr(", worker 0, 2 has "));
    }
  }
}

TEST(StateDigest, FlippedBitOfOneComponentIsReported) {
  MultiProcessRunner runner("digest_flip_of_two", {.num_workers = 2});
  runner.start();
  for (const Json& value : runner.join().return_values) {
    EXPECT_EQ(value.at("code").as_string(), "DATA_LOSS") << value.dump();
    const std::string message = value.at("message").as_string();
    EXPECT_THAT(message, HasSubstr("'bias"));
    EXPECT_THAT(message, ::testing::ContainsRegex("worker 0 has [0-9a-f]+/[0-9a-f]+"));
  }
}

TEST(StateDigest, EqualWorkersContinue) {
  MultiProcessRunner runner("digest_calm", {.num_workers = 2});
  runner.start();
  for (const Json& value : runner.join().return_values) {
    EXPECT_EQ(value.at("code").as_string(), "OK") << value.dump();
    EXPECT_EQ(value.at("steps").as_int(), 12);
  }
}

}  // namespace fit_workers_test
}  // namespace tutti
