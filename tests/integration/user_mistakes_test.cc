// Thirty mistakes that users make: each is answered by an error that names cause and remedy.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

struct Mistake {
  std::function<void()> make;
  std::string cause;   // what the message must say went wrong
  std::string remedy;  // and what is expected or to be tried
};

Dataset rows_of(std::int64_t count) {
  return Dataset::from_tensor_slices(
      {Tensor::ones({count, 4}), Tensor::zeros({count}, DType::kInt64)});
}

Sequential small_model() { return Sequential(Input{{4}}, Dense(3)); }

std::string written(const std::string& name, const std::string& bytes) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "tutti_mistakes";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return (folder / name).string();
}

MirroredStrategy two_replicas() { return MirroredStrategy({.devices = "cpu:0-1"}); }

/// Mistakes with tensors, models and training.
std::map<std::string, Mistake> model_mistakes() {
  return {
      {"MatmulOfShapesThatDoNotFit",
       {[] {
          matmul(Tensor::ones({2, 3}), Tensor::ones({4, 5}));
        },
        "[2, 3] and [4, 5]", "expected"}},
      {"AddingNumbersOfDifferentTypes",
       {[] { Tensor::ones({2}) + Tensor::ones({2}, DType::kInt64); }, "int64", "cast"}},
      {"ItemOfManyElements", {[] { Tensor::ones({3}).item(); }, "[3]", "one element"}},
      {"ConvolutionWithoutChannels",
       {[] {
          Sequential(Input{{28, 28}}, Conv2D(4, 3));
        },
        "[28, 28]", "[height, width, channels]"}},
      {"ModelWithoutInputShape", {[] { Sequential(Dense(3), Dense(2)); }, "input", "Input{{"}},
      {"ModelCalledWithWrongFeatures",
       {[] {
          small_model()(Tensor::ones({2, 5}));
        },
        "[2, 5]", "expected inputs [batch, ..., 4]"}},
      {"FitBeforeCompile", {[] { small_model().fit(rows_of(8).batch(4)); }, "compile", "compile("}},
      {"UnknownOptimizer", {[] { small_model().compile({.optimizer = "adm"}); }, "'adm'", "adam"}},
      {"UnknownLoss",
       {[] { small_model().compile({.loss = "crossentropy"}); }, "'crossentropy'",
        "sparse_categorical_crossentropy"}},
      {"UnknownMetric",
       {[] { small_model().compile({.loss = "mse", .metrics = {"acuracy"}}); }, "'acuracy'",
        "accuracy"}},
      {"UnknownActivation",
       {[] { Dense(3, {.activation = "rellu"}).build_for({4}); }, "'rellu'", "relu"}},
      {"LabelBeyondTheClasses",
       {[] {
          losses::sparse_categorical_crossentropy(Tensor::from<std::int64_t>({1}, {7}),
                                                  Tensor::ones({1, 3}));
        },
        "got 7", "expected 0 .. 2"}},
      {"LabelsOfAnotherShape",
       {[] {
          losses::mean_squared_error(Tensor::ones({4, 2}), Tensor::ones({4, 3}));
        },
        "[4, 2]", "[4, 3]"}},
      {"GradientAskedTwiceOfATape",
       {[] {
          Variable v(Tensor::ones({3}), {.name = "v"});
          GradientTape tape;
          const Tensor y = reduce_sum(v.value());
          tape.gradient(y, std::vector<Variable>{v});
          tape.gradient(y, std::vector<Variable>{v});
        },
        "tape", "persistent"}},
      {"GradientsOfOtherVariables",
       {[] {
          Variable v(Tensor::ones({3}), {.name = "v"});
          Sgd optimizer(std::vector<Variable>{v});
          optimizer.apply_gradients(std::vector<Gradient>(2));
        },
        "2", "1"}},
      {"TwoWaysOfClipping",
       {[] {
          Variable v(Tensor::ones({3}), {.name = "v"});
          Sgd(std::vector<Variable>{v}, {.clipping = {.clipnorm = 1.0, .clipvalue = 1.0}});
        },
        "clipnorm", "one"}},
      {"DropoutOfMoreThanAll", {[] { Dropout(1.5); }, "1.5", "expected"}},
  };
}

/// Mistakes with strategies, data and files.
std::map<std::string, Mistake> strategy_mistakes() {
  return {
      {"DatasetThatIsNotBatched",
       {[] {
          auto strategy = two_replicas();
          for (const auto& batch : strategy.distribute_dataset(rows_of(8)))
            static_cast<void>(batch);
        },
        "batch", "batch("}},
      {"BatchOfNothing", {[] { rows_of(8).batch(0); }, "0", "at least 1"}},
      {"VariableMadeInAReplica",
       {[] { two_replicas().run([] { Variable(Tensor::ones({2}), {.name = "late"}); }); }, "'late'",
        "scope()"}},
      {"RunInsideRun",
       {[] {
          auto strategy = two_replicas();
          strategy.run([&] { strategy.run([] {}); });
        },
        "run", "merge_call"}},
      {"ReplicaThatReturnsEarly",
       {[] {
          auto strategy = two_replicas();
          strategy.run([] {
            ReplicaContext& context = ReplicaContext::current();
            if (context.replica_id() == 0) context.all_reduce(ReduceOp::kSum, Tensor(1.0f));
          });
        },
        "replica 1", "all_reduce"}},
      {"ReplicasWithDifferentShapes",
       {[] {
          auto strategy = two_replicas();
          strategy.run([] {
            ReplicaContext& context = ReplicaContext::current();
            context.all_reduce(ReduceOp::kSum, Tensor::ones({2 + context.replica_id()}));
          });
        },
        "[3]", "[2]"}},
      {"ScopeInsideAnotherStrategysScope",
       {[] {
          auto first = two_replicas();
          auto second = two_replicas();
          auto scope = first.scope();
          auto inner = second.scope();
        },
        "Mixing different strategies", "mirrored"}},
      {"UnknownCrossDeviceOps", {[] { make_cross_device_ops("ncll"); }, "'ncll'", "canonical"}},
      {"RingThatMustBeDeterministic",
       {[] {
          MirroredStrategy({.devices = "cpu:0-1",
                            .cross_device_ops = make_cross_device_ops("ring"),
                            .deterministic = true});
        },
        "'ring'", "leaving cross_device_ops out"}},
      {"DeviceThatIsNotHere", {[] { MirroredStrategy({.devices = "gpu:0"}); }, "gpu:0", "cpu:0"}},
      {"DeviceMisspelt", {[] { MirroredStrategy({.devices = "cpu0"}); }, "'cpu0'", "cpu:0"}},
      {"TruncatedDataFile",
       {[] { read_idx(written("labels", std::string("\0\0\x08\x01\0\0\0\x05\1\2", 10))); },
        "offset", "expected 5 bytes"}},
      {"CheckpointOfAnotherModel",
       {[] {
          Sequential other(Input{{4}}, Dense(5));
          const std::string path = written("other.safetensors", "");
          other.save_weights(path);
          small_model().load_weights(path);
        },
        "[4, 5]", "[4, 3]"}},
  };
}

std::map<std::string, Mistake> all_mistakes() {
  std::map<std::string, Mistake> all = model_mistakes();
  all.merge(strategy_mistakes());
  return all;
}

class UserMistake : public ::testing::TestWithParam<std::string> {};

TEST_P(UserMistake, IsAnsweredByCauseAndRemedy) {
  const Mistake mistake = all_mistakes().at(GetParam());
  try {
    mistake.make();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    EXPECT_THAT(error.message(), ::testing::HasSubstr(mistake.cause));
    EXPECT_THAT(error.message(), ::testing::HasSubstr(mistake.remedy));
    if (std::getenv("TUTTI_SHOW_MISTAKES")) {
      std::printf("%s: %s\n", GetParam().c_str(), error.what());
    }
  }
}

std::vector<std::string> names_of_mistakes() {
  std::vector<std::string> names;
  for (const auto& [name, mistake] : all_mistakes()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, UserMistake, ::testing::ValuesIn(names_of_mistakes()),
                         [](const auto& info) { return info.param; });

TEST(UserMistakes, AreThirty) { EXPECT_EQ(all_mistakes().size(), 30U); }

}  // namespace
}  // namespace tutti
