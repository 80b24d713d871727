// Tests thirty user mistakes, each of which must cause an error that names the cause and the
// remedy.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

namespace tutti::user_mistakes_test {

struct Mistake {
  std::string name;
  std::function<void()> make;
  std::string cause;   // part of the error that names the cause
  std::string remedy;  // part of the error that names the remedy
};

/// Returns ones of shape [rows], or [rows, columns].
Tensor ones(std::int64_t rows, std::int64_t columns = 0) {
  return Tensor::ones(columns > 0 ? Shape{rows, columns} : Shape{rows});
}

Dataset rows_of(std::int64_t count) {
  return Dataset::from_tensor_slices({ones(count, 4), Tensor::zeros({count}, DType::kInt64)});
}

Sequential small_model() { return Sequential(Input{{4}}, Dense(3)); }

Variable three(const char* name = "v") { return Variable(ones(3), {.name = name}); }

std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = concat(::testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

MirroredStrategy two_replicas() { return MirroredStrategy({.devices = "cpu:0-1"}); }

/// On two replicas, runs a step that sums a value of size_of_value(replica) elements. A replica
/// with size 0 makes no call.
void sum_on_replicas(const std::function<int(int replica)>& size_of_value) {
  two_replicas().run([&] {
    ReplicaContext& context = ReplicaContext::current();
    const int size = size_of_value(context.replica_id());
    if (size > 0) context.all_reduce(ReduceOp::kSum, ones(size));
  });
}

void ask_tape_twice() {
  const std::vector<Variable> v = {three()};
  GradientTape tape;
  const Tensor y = reduce_sum(v[0].value());
  tape.gradient(y, v);
  tape.gradient(y, v);
}

void load_another_model() {
  const std::string path = written("other.safetensors", "");
  Sequential(Input{{4}}, Dense(5)).save_weights(path);
  small_model().load_weights(path);
}

void run_in_a_run() {
  auto strategy = two_replicas();
  strategy.run([&] { strategy.run([] {}); });
}

void mix_scopes() {
  auto first = two_replicas(), second = two_replicas();
  const auto scope = first.scope(), inner = second.scope();
}

void clip_in_two_ways() {
  Sgd(std::vector{three()}, {.clipping = {.clipnorm = 1.0, .clipvalue = 1.0}});
}

void ask_a_ring_for_one_order() {
  MirroredStrategy({.devices = "cpu:0-1",
                    .cross_device_ops = make_cross_device_ops("ring"),
                    .deterministic = true});
}

const std::vector<Mistake>& all_mistakes() {
  using namespace losses;
  const auto label_7 = [] { return Tensor::from<std::int64_t>({1}, {7}); };
  const std::string truncated("\0\0\x08\x01\0\0\0\x05\1\2", 10);
  static const std::vector<Mistake> all = {
      // Mistakes in the use of tensors, models and training.
      {"MatmulOfMismatchedShapes", [] { matmul(ones(2, 3), ones(4, 5)); }, "[2, 3] and [4, 5]",
       "expected"},
      {"SumOfDifferentTypes", [] { ones(2) + cast(ones(2), DType::kInt64); }, "int64", "cast"},
      {"ItemOfSeveralElements", [] { ones(3).item(); }, "[3]", "one element"},
      {"ConvolutionWithoutChannels",
       [] {
         Sequential(Input{{28, 28}}, Conv2D(4, 3));
       },
       "[28, 28]", "[height, width, channels]"},
      {"ModelWithoutInputShape", [] { Sequential(Dense(3), Dense(2)); }, "input", "Input{{"},
      {"ModelCalledWithWrongFeatures", [] { small_model()(ones(2, 5)); }, "[2, 5]",
       "expected inputs [batch, ..., 4]"},
      {"FitBeforeCompile", [] { small_model().fit(rows_of(8).batch(4)); }, "compile", "compile("},
      {"UnknownOptimizer", [] { small_model().compile({.optimizer = "adm"}); }, "'adm'", "adam"},
      {"UnknownLoss", [] { small_model().compile({.loss = "crossentropy"}); }, "'crossentropy'",
       "sparse_categorical_crossentropy"},
      {"UnknownMetric", [] { small_model().compile({.loss = "mse", .metrics = {"acuracy"}}); },
       "'acuracy'", "accuracy"},
      {"UnknownActivation", [] { Dense(3, {.activation = "rellu"}).build_for({4}); }, "'rellu'",
       "relu"},
      {"LabelOutsideClasses", [=] { sparse_categorical_crossentropy(label_7(), ones(1, 3)); },
       "got 7", "expected labels in 0 .. 2"},
      {"LabelsOfDifferentShape", [] { mean_squared_error(ones(4, 2), ones(4, 3)); }, "[4, 2]",
       "[4, 3]"},
      {"SecondGradientOfOneTape", ask_tape_twice, "tape", "persistent"},
      {"WrongNumberOfGradients",
       [] { Sgd(std::vector{three()}).apply_gradients(std::vector<Gradient>(2)); }, "2", "1"},
      {"TwoKindsOfClipping", clip_in_two_ways, "clipnorm", "one"},
      {"DropoutRateAboveOne", [] { Dropout(1.5); }, "1.5", "expected"},
      // Mistakes in using strategies, data and files.
      {"UnbatchedDataset", [] { two_replicas().distribute_dataset(rows_of(8)).begin(); }, "batch",
       "batch("},
      {"BatchSizeZero", [] { rows_of(8).batch(0); }, "0", ">= 1"},
      {"VariableCreatedInReplica", [] { two_replicas().run([] { three("late"); }); }, "'late'",
       "scope()"},
      {"RunInsideRun", run_in_a_run, "run", "merge_call"},
      {"ReplicaThatSkipsCollective", [] { sum_on_replicas([](int r) { return 1 - r; }); },
       "replica 1", "all_reduce"},
      {"ReplicasWithDifferentShapes", [] { sum_on_replicas([](int r) { return 2 + r; }); }, "[3]",
       "[2]"},
      {"ScopeInsideAnotherStrategysScope", mix_scopes, "Mixing different strategies", "mirrored"},
      {"UnknownCrossDeviceOps", [] { make_cross_device_ops("ncll"); }, "'ncll'", "canonical"},
      {"RingInDeterministicStrategy", ask_a_ring_for_one_order, "'ring'", "omit cross_device_ops"},
      {"UnavailableDevice", [] { MirroredStrategy({.devices = "gpu:0"}); }, "gpu:0", "cpu:0"},
      {"MisspelledDevice", [] { MirroredStrategy({.devices = "cpu0"}); }, "'cpu0'", "cpu:0"},
      {"TruncatedDataFile", [=] { read_idx(written("labels", truncated)); }, "offset",
       "expected 5 bytes"},
      {"CheckpointOfAnotherModel", load_another_model, "[4, 5]", "[4, 3]"},
  };
  return all;
}

class UserMistake : public ::testing::TestWithParam<Mistake> {};
INSTANTIATE_TEST_SUITE_P(All, UserMistake, ::testing::ValuesIn(all_mistakes()),
                         [](const auto& info) { return info.param.name; });

TEST_P(UserMistake, ErrorNamesCauseAndRemedy) {
  try {
    GetParam().make();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    EXPECT_THAT(error.message(), ::testing::HasSubstr(GetParam().cause));
    EXPECT_THAT(error.message(), ::testing::HasSubstr(GetParam().remedy));
    if (std::getenv("TUTTI_SHOW_MISTAKES")) {
      std::printf("%s: %s\n", GetParam().name.c_str(), error.what());
    }
  }
}

TEST(UserMistakes, ListHasThirtyEntries) { EXPECT_EQ(all_mistakes().size(), 30U); }

}  // namespace tutti::user_mistakes_test
