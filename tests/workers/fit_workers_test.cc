// Tests models in several processes: fit(), model files, state digests, and calls that only one
// worker makes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests::fit_workers_test {

/// Returns a model that predicts 0 and never learns, so the loss is the mean of the squared labels.
Sequential constant_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse"});
  return model;
}

TUTTI_PROCESS_FUNCTION(fit_that_evaluates) {
  const ScopedWorkers strategy;
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const LambdaCallback callback({.on_train_batch_end = [&](std::int64_t, const Logs&) {
    model.evaluate(x, x * 100.0f);
    model.predict(x);
  }});
  const History history = model.fit(
      x, x * 3.0f,
      {.epochs = 2, .batch_size = 4, .callbacks = {callback}, .verbose = Verbosity::kSilent});
  return Json::array_of(history["loss"]);
}

TEST(FitWorkers, EvaluateInCallbackDoesNotAffectFitLoss) {
  for (const Json& losses : results_of("fit_that_evaluates", 2)) {
    ASSERT_EQ(losses.as_array().size(), 2u);
    for (const Json& loss : losses.as_array()) EXPECT_NEAR(loss.as_double(), 9.0, 1e-5);
  }
}

TUTTI_PROCESS_FUNCTION(fit_that_one_worker_stops) {
  const ScopedWorkers strategy;
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const bool stops = this_process().index == 1;
  const auto stop = [&](std::int64_t, const Logs&) {
    if (stops) model.stop_training();
  };
  LambdaCallbackOptions callback;
  (arguments.at("moment").as_string() == "epoch" ? callback.on_epoch_end
                                                 : callback.on_train_batch_end) = stop;
  return error_as_json([&] {
    model.fit(x, x,
              {.epochs = 3,
               .batch_size = 2,
               .callbacks = {LambdaCallback(callback)},
               .verbose = Verbosity::kSilent});
  });
}

TEST(FitWorkers, ErrorReportsThatOnlyOneWorkerStopped) {
  for (const std::string moment : {"epoch", "batch"}) {
    for (const Json& error :
         results_of("fit_that_one_worker_stops", 2, Json::object().set("moment", moment))) {
      const std::string message = error.at("message").as_string();
      EXPECT_THAT(message, HasSubstr("stop_training()")) << moment;
      if (moment == "batch") continue;
      EXPECT_THAT(message, HasSubstr("in epoch 0 on worker 1, not on worker 0"));
    }
  }
}

Dataset three_kinds() {
  const Tensor x = random_uniform({26, 4}, {.seed = 11}, -1.0, 1.0);
  const Tensor y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  return Dataset::from_tensor_slices({x, y}).shuffle(26, 7).batch(4);
}

/// Trains for two epochs and returns the hash of the resulting state.
Json train_on(Model& model) {
  const std::int64_t begin = model.epochs_trained();
  model.fit(three_kinds(),
            {.epochs = begin + 2, .initial_epoch = begin, .verbose = Verbosity::kSilent});
  std::vector<Variable> all = model.variables();
  for (const Variable& state : model.optimizer().state_variables()) all.push_back(state);
  return hash_variables(all);
}

TUTTI_PROCESS_FUNCTION(continues_from_a_file) {
  const ScopedWorkers strategy;
  // Each worker has a separate folder, as if the workers shared no disk.
  const std::string folder = concat(arguments.at("folder").as_string(), "/", this_process().index);
  const std::shared_ptr<Model> model = load_model(folder + "/model.safetensors");
  Json result = train_on(*model);
  model->save(folder + "/later.safetensors");
  return result;
}

TEST(ModelFileWorkers, ResumeMatchesOneProcessBitForBit) {
  const std::string folder = new_folder("model_file_workers");
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

  EXPECT_THAT(results_of("continues_from_a_file", 2, Json::object().set("folder", folder)),
              ::testing::ElementsAre(expected, expected));
  EXPECT_TRUE(std::filesystem::exists(folder + "/0/later.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/1")) << "expected only the chief to write";
}

constexpr int kDigestSteps = 3;

/// Flips a bit in place, as a memory fault would; all tensors that share the buffer see the change.
void flip_a_bit_of(const Variable& variable) {
  const Tensor value = variable.storage().local_components().back();
  const std::span<const std::byte> bytes = value.bytes();
  const_cast<std::byte&>(bytes[bytes.size() / 2]) ^= std::byte{4};
}

/// Trains 12 steps on the given devices. After step arguments["after"], flips a bit in the memory
/// of worker arguments["on"]. Returns the error that ended training and the number of steps.
TUTTI_PROCESS_FUNCTION(training_with_digests) {
  const ScopedWorkers strategy(
      {.local = {.devices = arguments.at("devices").as_string()}, .digest_steps = kDigestSteps});
  Variable weight(Tensor::zeros({64}), {.name = "weight"});
  Variable bias(Tensor::zeros({8}), {.name = "bias"});
  Adam optimizer(std::vector<Variable>{weight, bias}, {.learning_rate = 0.1});
  int step = 0;
  Json result = error_as_json([&] {
    while (step < 12) {
      strategy->run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)) +
                                     reduce_sum(square(bias.value() + 1.0f)));
      });
      ++step;
      if (step == arguments.at("after").as_int() &&
          this_process().index == arguments.at("on").as_int()) {
        flip_a_bit_of(bias);
      }
    }
  });
  return result.set("steps", step);
}

std::vector<Json> results_with_digests(int workers, const char* devices, int after, int on) {
  return results_of("training_with_digests", workers,
                    Json::object().set("devices", devices).set("after", after).set("on", on));
}

TEST(StateDigest, FlippedBitIsReportedWithWorkerAndVariable) {
  for (const int after : {3, 4, 5}) {
    for (const Json& value : results_with_digests(3, "cpu:0", after, 1)) {
      expect_error(value, "DATA_LOSS",
                   {"after step 6: the workers' values of 'bias", "differ: worker 1 has ",
                    ", workers 0, 2 have "});
      EXPECT_EQ(value.at("steps").as_int(), 5);  // detected at most kDigestSteps steps later
    }
  }
}

TEST(StateDigest, FlippedBitInOneComponentIsReported) {
  for (const Json& value : results_with_digests(2, "cpu:0-1", 4, 0)) {
    expect_error(value, "DATA_LOSS", {"'bias"});
    EXPECT_THAT(value.at("message").as_string(),
                ::testing::ContainsRegex("worker 0 has [0-9a-f]+/[0-9a-f]+"));
  }
}

TEST(StateDigest, EqualStatesDoNotRaiseErrors) {
  for (const Json& value : results_with_digests(2, "cpu:0-1", 0, -1)) {
    expect_error(value, "OK", {});
    EXPECT_EQ(value.at("steps").as_int(), 12);
  }
}

}  // namespace tutti::worker_tests::fit_workers_test
