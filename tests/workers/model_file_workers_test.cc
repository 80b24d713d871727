// A model that one process saved goes on with the same bits in two, of which one sees the file.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/tutti.h"

namespace tutti::model_file_workers_tests {
namespace {

using testing::MultiProcessRunner;
using testing::this_process;

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

}  // namespace
}  // namespace tutti::model_file_workers_tests
