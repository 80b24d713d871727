// Tests TpuStrategy, which must pass the strategy conformance suite, and other strategies on XLA
// devices.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/xla/xla_test_support.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti::testing::tpu_strategy_test {

/// Returns 32 examples with 12 features and 4 classes, in batches of 16.
Dataset blobs() {
  const Tensor features = random_normal({32, 12}, RandomKey{3});
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 32; ++i) labels.push_back(i % 4);
  return Dataset::from_tensor_slices(features, Tensor::from<std::int32_t>({32}, labels)).batch(16);
}

template <class MakeOptimizer>
Trainee trainee_of(std::shared_ptr<Sequential> model, const MakeOptimizer& make_optimizer) {
  auto optimizer = make_optimizer(model->trainable_variables());
  auto step = [model, optimizer](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = (*model)(batch.features(), {.training = true});
    const Tensor losses = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(losses, batch.global_rows());
    optimizer->minimize(tape, loss);
    return loss;
  };
  const auto& all = model->variables();
  return {step, {all.begin(), all.end()}};
}

template <class MakeOptimizer>
Trainee mlp(const MakeOptimizer& make_optimizer, double dropout = 0.0) {
  return trainee_of(
      std::make_shared<Sequential>(Input{{12}}, Dense(16, {.activation = "relu"}), Dropout(dropout),
                                   Dense(8, {.activation = "tanh"}), Dense(4)),
      make_optimizer);
}

/// Returns a trainee whose network is smaller than that of mlp() and compiles twice as fast.
template <class MakeOptimizer>
Trainee two_layers(const MakeOptimizer& make_optimizer) {
  return trainee_of(
      std::make_shared<Sequential>(Input{{12}}, Dense(8, {.activation = "tanh"}), Dense(4)),
      make_optimizer);
}

const auto kSgd = [](const std::vector<Variable>& variables) {
  return std::make_shared<Sgd>(variables, SgdOptions{.learning_rate = 0.1, .momentum = 0.9});
};

TEST(TpuStrategy, TrainsLikeMirroredStrategyOn1And2And4Replicas) {
  for (const int replicas : {1, 2, 4}) {
    expect_close_to_mirrored(
        replicas, blobs(), [] { return mlp(kSgd); }, 10, 1e-5);
  }
}

TEST(TpuStrategy, DropoutMaskMatchesCpu) {
  // If a replica had a different dropout mask, the loss would be far outside the tolerance.
  expect_close_to_mirrored(
      2, blobs(), [] { return mlp(kSgd, 0.5); }, 10, 1e-5);
}

TEST(TpuStrategy, RepeatedRunsAreBitIdentical) {
  const auto run = [] {
    TpuStrategy strategy({.replicas = 4});
    return train(
        strategy, blobs(), [] { return mlp(kSgd, 0.2); }, 5);
  };
  const Trained first = run(), second = run();
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.weights, second.weights);
}

template <class Optimizer, class Options>
void expect_rule_as_mirrored(const char* name, const Options& options) {
  SCOPED_TRACE(name);
  const auto make = [&](const std::vector<Variable>& variables) {
    return std::make_shared<Optimizer>(variables, options);
  };
  expect_close_to_mirrored(
      2, blobs(), [&] { return two_layers(make); }, 5, 2e-5);
}

TEST(TpuStrategy, OptimizerRulesMatchCpu) {
  expect_rule_as_mirrored<Sgd>("nesterov", SgdOptions{.momentum = 0.9, .nesterov = true});
  expect_rule_as_mirrored<Sgd>("decay", SgdOptions{.weight_decay = 0.1});
  expect_rule_as_mirrored<Adam>("adam", AdamOptions{});
  expect_rule_as_mirrored<Adam>("amsgrad", AdamOptions{.amsgrad = true});
  expect_rule_as_mirrored<Nadam>("nadam", NadamOptions{});
  expect_rule_as_mirrored<Adagrad>("adagrad", AdagradOptions{.learning_rate = 0.05});
  expect_rule_as_mirrored<Adadelta>("adadelta", AdadeltaOptions{});
  expect_rule_as_mirrored<Rmsprop>("rmsprop", RmspropOptions{});
  expect_rule_as_mirrored<Rmsprop>("centered", RmspropOptions{.momentum = 0.5, .centered = true});
  expect_rule_as_mirrored<Ftrl>("ftrl", FtrlOptions{.l1_regularization_strength = 0.01});
  expect_rule_as_mirrored<Lamb>("lamb", LambOptions{.weight_decay = 0.1});
  expect_rule_as_mirrored<Lars>("lars", LarsOptions{.weight_decay = 0.1});
  expect_rule_as_mirrored<Lion>("lion", LionOptions{});
  expect_rule_as_mirrored<Sgd>("clipnorm", SgdOptions{.clipping = {.clipnorm = 0.1}});
  expect_rule_as_mirrored<Sgd>("global", SgdOptions{.clipping = {.global_clipnorm = 0.1}});
  expect_rule_as_mirrored<Sgd>("clipvalue", SgdOptions{.clipping = {.clipvalue = 0.01}});
  expect_rule_as_mirrored<Sgd>("average", SgdOptions{.ema = EmaOptions{}});
}

TEST(TpuStrategy, StepScalarsAreArgumentsOfOneProgram) {
  const auto decaying = [](const std::vector<Variable>& variables) {
    return std::make_shared<Adam>(
        variables, AdamOptions{.learning_rate = ExponentialDecay(
                                   {.initial_learning_rate = 0.1, .decay_steps = 2})});
  };
  expect_close_to_mirrored(
      2, blobs(), [&] { return mlp(decaying); }, 6, 2e-5);
}

/// Returns the error that `action` throws.
template <class Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kOk, "nothing was thrown");
}

TEST(TpuStrategy, HostReadInStepErrorNamesOperationAndLine) {
  TpuStrategy strategy;
  const Tensor x = Tensor::ones({2, 2});
  const int line = __LINE__ + 1;
  const Error error = error_of([&] { strategy.run([&] { return square(x).sum().item(); }); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  const std::string maker = concat("reduce_sum at tpu_strategy_test.cc:", line);
  EXPECT_NE(error.message().find(maker), std::string::npos) << error.message();
  EXPECT_NE(error.message().find("read it after run()"), std::string::npos);
}

TEST(TpuStrategy, UnsupportedOperationErrorNamesOperationAndLine) {
  TpuStrategy strategy;
  const Tensor x = Tensor::ones({2}, DType::kInt32);
  const int line = __LINE__ + 1;
  const Error error = error_of([&] { strategy.run([&] { return pow(x, x); }); });
  EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
  EXPECT_NE(error.message().find(concat("pow at tpu_strategy_test.cc:", line)), std::string::npos)
      << error.message();
}

TEST(TpuStrategy, ErrorForDivergingReplicasNamesOperations) {
  TpuStrategy strategy({.replicas = 2});
  const PerReplica<Tensor> parts({Tensor::ones({3, 2}), Tensor::ones({2, 2})});
  const Error error = error_of(
      [&] { strategy.run([](const Tensor& part) { return reduce_sum(square(part)); }, parts); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  for (const char* word :
       {"got square", "in replica 0", "tensor<3x2xf32>", "tensor<2x2xf32>", "drop_remainder"}) {
    EXPECT_NE(error.message().find(word), std::string::npos) << word << ": " << error.message();
  }
}

TEST(TpuStrategy, RejectsTooManyReplicasAndRemoteHosts) {
  EXPECT_EQ(error_of([] { TpuStrategy strategy({.replicas = 99}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { TpuClusterResolver resolver("grpc://10.0.0.2:8470"); }).code(),
            ErrorCode::kUnimplemented);
  EXPECT_EQ(TpuClusterResolver("local").platform(), "cpu");
}

TEST(TpuStrategy, IsCreatedByNameAndRejectsUnsupportedOptions) {
  const auto strategy = make_strategy("tpu", {.replicas = 2});
  EXPECT_EQ(strategy->name(), "tpu");
  EXPECT_EQ(strategy->num_replicas_in_sync(), 2);
  EXPECT_EQ(strategy->reduction_name(), "stablehlo.all_reduce");
  EXPECT_EQ(make_strategy("tpu", {.devices = "xla:0-3"})->num_replicas_in_sync(), 4);
  EXPECT_EQ(make_strategy("tpu", {.devices = "cpu:0-3"})->num_replicas_in_sync(), 4);
  EXPECT_EQ(error_of([] { TpuStrategy strategy({.devices = "cpu:0"}); }).code(),
            ErrorCode::kInvalidArgument);
  const auto refused = [](const StrategySpec& spec) {
    return error_of([&] { make_strategy("tpu", spec); }).code();
  };
  EXPECT_EQ(refused({.devices = "cpu:0-1", .replicas = 4}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.cross_device_ops = "ring"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.non_finite = "skip"}), ErrorCode::kInvalidArgument);
}

/// Update rule that XLA steps do not support, because it has no device rule.
class RuleOfMyOwn final : public UpdateRule {
 public:
  std::string_view name() const override { return "my_own"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs&) const override {}
};

TEST(TpuStrategy, RejectsUnsupportedOptimizerWithoutChangingVariables) {
  TpuStrategy strategy;
  const auto scope = strategy.scope();
  Variable weight(Tensor::ones({2}), {.name = "weight"});
  Optimizer optimizer(std::vector<Variable>{weight}, std::make_unique<RuleOfMyOwn>(), {});
  const Error error = error_of([&] {
    strategy.run([&] {
      GradientTape tape;
      optimizer.minimize(tape, reduce_sum(square(weight.value())));
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
  EXPECT_NE(error.message().find("my_own"), std::string::npos) << error.message();
  EXPECT_EQ(weight.value().to_doubles(), (std::vector<double>{1, 1}));
}

TEST(TpuStrategy, RejectsDynamicLossScalingAndAcceptsFixedScale) {
  AdamOptions dynamic;
  dynamic.dynamic_loss_scale = DynamicLossScaleOptions{};
  const auto make = [&](const AdamOptions& options) {
    return [&options](const std::vector<Variable>& variables) {
      return std::make_shared<Adam>(variables, options);
    };
  };
  TpuStrategy strategy;
  const Error error = error_of([&] {
    train(
        strategy, blobs(), [&] { return mlp(make(dynamic)); }, 1);
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
  for (const char* word : {"dynamic loss scaling", "mixed_bfloat16", "loss_scale_factor"})
    EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
  expect_rule_as_mirrored<Adam>("fixed scale", AdamOptions{.loss_scale_factor = 128.0});
}

TEST(TpuStrategy, RejectsValueOfFailedStep) {
  TpuStrategy strategy;
  Tensor kept;
  EXPECT_EQ(error_of([&] {
              strategy.run([&] {
                kept = square(Tensor::ones({2}));
                (void)pow(Tensor::ones({2}, DType::kInt32), 2);
              });
            }).code(),
            ErrorCode::kUnimplemented);
  const Error error = error_of([&] { (void)kept.to_doubles(); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(error.message().find("because its step failed"), std::string::npos) << error.message();
}

TEST(TpuStrategy, EarlierReadsKeepTheirValuesAndStepsSeeHostWrites) {
  TpuStrategy strategy({.replicas = 2});
  const auto scope = strategy.scope();
  Variable weight(Tensor::ones({3}), {.name = "weight"});
  Sgd optimizer(std::vector<Variable>{weight}, {.learning_rate = 0.25});
  const auto step = [&] {
    GradientTape tape;
    optimizer.minimize(tape, reduce_sum(weight.value()));
  };
  const Tensor before = weight.value();
  strategy.run(step);  // the gradient of each replica is 1
  const Tensor after = weight.value();
  strategy.run(step);
  EXPECT_EQ(before.to_doubles(), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(after.to_doubles(), (std::vector<double>{0.5, 0.5, 0.5}));
  weight.assign_add(Tensor::ones({3}));
  EXPECT_EQ(weight.value().to_doubles(), (std::vector<double>{1, 1, 1}));
  strategy.run(step);
  for (const Tensor& component : weight.storage().local_components())
    EXPECT_EQ(component.to_doubles(), (std::vector<double>{0.5, 0.5, 0.5}));
  // A buffer that is still in use cannot be donated to the results, so a second program is
  // compiled, but not a third.
  EXPECT_LE(strategy.num_compiled(), 2);
}

TEST(TpuStrategy, ResumesFromCheckpointBitIdentically) {
  const std::string folder = own_folder("tpu_checkpoint");
  const auto run = [&](bool saves, bool restores) {
    set_random_seed(7);
    TpuStrategy strategy({.replicas = 2});
    const auto scope = strategy.scope();
    Sequential model(Input{{12}}, Dense(8, {.activation = "relu"}), Dropout(0.3), Dense(4));
    Adam optimizer(model.trainable_variables(), {});
    Checkpoint checkpoint(model.variables());
    checkpoint.add(optimizer.state_variables());
    checkpoint.add_state("strategy", {[&] { return strategy.save_state(); },
                                      [&](const Json& state) { strategy.restore_state(state); }});
    CheckpointManager manager(std::move(checkpoint), folder);
    if (restores) {
      EXPECT_TRUE(manager.restore_latest().has_value());
    }
    const Tensor x = random_normal({8, 12}, RandomKey{3});
    for (int step = restores ? 2 : 0; step < 4; ++step) {
      strategy.run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(model(x, {.training = true}))) / 16.0);
      });
      if (saves && step == 1) manager.save(2);
    }
    std::vector<std::vector<double>> weights;
    for (const Variable& variable : model.variables())
      weights.push_back(variable.value().to_doubles());
    return weights;
  };
  const auto whole = run(true, false);
  EXPECT_EQ(run(false, true), whole);
  std::filesystem::remove_all(folder);
}

TEST(TpuStrategy, VariablesAcceptSlicesOfLargerValues) {
  TpuStrategy strategy;
  const auto scope = strategy.scope();
  Variable row(Tensor::zeros({2}), {.name = "row"});
  const auto step = [&] { row.assign(square(Tensor::full({3, 2}, 3.0))[1] + row.value()[0]); };
  strategy.run(step);
  strategy.run([&] { row.assign(square(Tensor::full({3, 2}, 3.0))[2]); });
  EXPECT_EQ(row.value().to_doubles(), (std::vector<double>{9, 9}));
  strategy.run(step);
  EXPECT_EQ(row.value().to_doubles(), (std::vector<double>{18, 18}));
}

TEST(TpuStrategy, ReplicaContextReducesAndGathersValues) {
  TpuStrategy strategy({.replicas = 4});
  const auto numbers = strategy.distribute_values_from_function([](const ValueContext& context) {
    return Tensor::full({2}, context.replica_id_in_sync_group + 1.0);
  });
  const auto results = strategy.run(
      [](const Tensor& own) {
        ReplicaContext& context = ReplicaContext::current();
        return std::vector<Tensor>{
            context.all_reduce(ReduceOp::kSum, own), context.all_reduce(ReduceOp::kMean, own),
            context.all_reduce(ReduceOp::kMax, own), context.all_gather(own, 0)};
      },
      numbers);
  for (const std::vector<Tensor>& each : results) {
    EXPECT_EQ(each[0].to_doubles(), (std::vector<double>{10, 10}));
    EXPECT_EQ(each[1].to_doubles(), (std::vector<double>{2.5, 2.5}));
    EXPECT_EQ(each[2].to_doubles(), (std::vector<double>{4, 4}));
    EXPECT_EQ(each[3].to_doubles(), (std::vector<double>{1, 1, 2, 2, 3, 3, 4, 4}));
  }
}

TEST(TpuStrategy, FitAndEvaluateMatchMirroredStrategy) {
  const auto fit = [](Strategy& strategy) {
    set_random_seed(11);
    const auto scope = strategy.scope();
    Sequential model(Input{{12}}, Dense(16, {.activation = "relu"}), Dense(4));
    model.compile(
        {.optimizer = "adam", .loss = "sparse_categorical_crossentropy", .metrics = {"accuracy"}});
    History history = model.fit(blobs(), {.epochs = 3, .verbose = Verbosity::kSilent});
    const Logs evaluated = model.evaluate(blobs(), {.verbose = Verbosity::kSilent});
    return std::vector<double>{history.at("loss").back(), history.at("accuracy").back(),
                               evaluated.at("loss"), evaluated.at("accuracy")};
  };
  MirroredStrategy mirrored("cpu:0-1");
  TpuStrategy tpu({.replicas = 2});
  const std::vector<double> expected = fit(mirrored), got = fit(tpu);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

class XlaStrategySuite : public TestWithParam<std::tuple<int, std::string>> {};

TEST_P(XlaStrategySuite, CheckHasExpectedResult) {
  const auto& [replicas, check] = GetParam();
  const conformance::StrategySubject subject{
      .name = concat("tpu_", replicas),
      .make = [replicas = replicas]() -> std::unique_ptr<Strategy> {
        return std::make_unique<TpuStrategy>(LocalStrategyOptions{.replicas = replicas});
      },
      .is_canonical = false};
  const std::string message = conformance::run_strategy_check(subject, check);
  if (check == "collectives" && replicas > 1) {
    // The check gathers values of different lengths, which a single program for all replicas cannot
    // do.
    EXPECT_NE(message.find("expected the same operations on the same shapes"), std::string::npos)
        << message;
  } else {
    EXPECT_EQ(message, "");
  }
}

INSTANTIATE_TEST_SUITE_P(, XlaStrategySuite,
                         Combine(Values(1, 2, 4), ValuesIn(conformance::strategy_checks())),
                         [](const auto& info) {
                           return concat(std::get<1>(info.param), "_on_", std::get<0>(info.param));
                         });

/// Returns 16 examples with 6 features, labelled with their sum, in batches of 8.
Dataset sums() {
  const Tensor features = random_normal({16, 6}, RandomKey{5});
  return Dataset::from_tensor_slices(features, reduce_sum(features, {{1}, true})).batch(8);
}

Trainee regression() {
  auto model = std::make_shared<Sequential>(Input{{6}}, Dense(4, {.activation = "tanh"}),
                                            Dropout(0.25), Dense(1));
  auto optimizer = std::make_shared<Adam>(model->trainable_variables(), AdamOptions{});
  auto step = [model, optimizer](const Batch& batch) {
    GradientTape tape;
    const Tensor predicted = (*model)(batch.features(), {.training = true});
    const Tensor losses = losses::mean_squared_error(batch.labels(), predicted);
    const Tensor loss = compute_average_loss(losses, batch.global_rows());
    optimizer->minimize(tape, loss);
    return loss;
  };
  const auto& all = model->variables();
  return {step, {all.begin(), all.end()}};
}

/// Trains with TpuStrategy and returns the result. Trains only once for each number of replicas;
/// later calls return the stored result.
const Trained& trained_by_tpu_strategy(int replicas) {
  static std::map<int, Trained> kept;
  const auto found = kept.find(replicas);
  if (found != kept.end()) return found->second;
  TpuStrategy tpu({.replicas = replicas});
  return kept[replicas] = train(tpu, sums(), regression, 4);
}

void expect_the_bits_of_tpu_strategy(Strategy& strategy, int replicas) {
  const Trained& expected = trained_by_tpu_strategy(replicas);
  const Trained got = train(strategy, sums(), regression, 4);
  EXPECT_EQ(strategy.num_replicas_in_sync(), replicas);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.weights, expected.weights);
  EXPECT_EQ(strategy.reduction_name(), "stablehlo.all_reduce");
}

TEST(MirroredOnXla, EveryDeviceSpellingMatchesTpuStrategyBitwise) {
  MirroredStrategy range("xla:0-3");
  expect_the_bits_of_tpu_strategy(range, 4);
  EXPECT_EQ(range.num_compiled(), 1);
  EXPECT_NE(range.last_program().find("stablehlo.all_reduce"), std::string::npos);
  MirroredStrategy names({.devices = {"xla:0", "/device:TPU:1"}, .replicas = 2});
  expect_the_bits_of_tpu_strategy(names, 2);
  MirroredStrategy values(std::vector<Device>{{DeviceType::kXla, 0}, {DeviceType::kXla, 1}});
  expect_the_bits_of_tpu_strategy(values, 2);
  TpuStrategy tpus({.devices = "tpu:0-1"});
  expect_the_bits_of_tpu_strategy(tpus, 2);
  expect_the_bits_of_tpu_strategy(*make_strategy("mirrored", {.devices = "xla:0,xla:1"}), 2);
  OneDeviceStrategy one("xla:0");
  expect_the_bits_of_tpu_strategy(one, 1);
  expect_the_bits_of_tpu_strategy(*make_strategy("one_device", {.devices = "tpu:0"}), 1);
}

TEST(MirroredOnXla, SupportsAnyDevicesInAnyOrder) {
  MirroredStrategy last("xla:6-7"), turned({.devices = {"xla:2", "xla:1"}});
  OneDeviceStrategy third("xla:2");
  expect_the_bits_of_tpu_strategy(last, 2);
  expect_the_bits_of_tpu_strategy(turned, 2);
  expect_the_bits_of_tpu_strategy(third, 1);
}

TEST(MirroredOnXla, AcceptsValuesOfDifferentStrategy) {
  MirroredStrategy first("xla:0-1"), second("xla:2-3");
  const PerReplica<Tensor> made = first.run([] { return square(Tensor::full({2}, 3.0)); });
  const PerReplica<Tensor> used =
      second.run([](const Tensor& own) { return own + Tensor::ones({2}); }, made);
  for (const Tensor& each : used) EXPECT_EQ(each.to_doubles(), (std::vector<double>{10, 10}));
}

TEST(MirroredOnXla, CapturedStepMatchesUncapturedStep) {
  const auto run = [](bool captures) {
    MirroredStrategy strategy("xla:0-1");
    const auto make = [captures] {
      Trainee trainee = regression();
      if (captures) trainee.step = captured(trainee.step);
      return trainee;
    };
    const Trained result = train(strategy, sums(), make, 4);
    EXPECT_EQ(strategy.num_compiled(), 1);
    return result;
  };
  const Trained plain = run(false), captured_ones = run(true);
  EXPECT_EQ(captured_ones.losses, plain.losses);
  EXPECT_EQ(captured_ones.weights, plain.weights);
}

TEST(MirroredOnXla, ErrorNamesUnsupportedOption) {
  const auto expect_refused = [](const LocalStrategyOptions& options, const char* word) {
    try {
      MirroredStrategy strategy(options);
      ADD_FAILURE() << "expected an error that names " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
    }
  };
  const DeviceList two = "xla:0-1";
  expect_refused({.devices = two, .replicas = 4}, "TUTTI_XLA_CPU_DEVICES");
  expect_refused({.devices = std::vector<Device>(2, {DeviceType::kXla, 0})}, "appears twice");
  expect_refused({.devices = two, .cross_device_ops = {"ring"}}, "cross_device_ops");
  const auto with = [&](const CommunicationOptions& communication) {
    return LocalStrategyOptions{.devices = two, .cross_device_ops = {"", communication}};
  };
  expect_refused(with({.bytes_per_pack = 1024}), "bytes_per_pack");
  expect_refused(with({.first_bytes_per_pack = 1024}), "first_bytes_per_pack");
  expect_refused(with({.implementation = CommunicationImplementation::kRing}), "cross_device_ops");
  expect_refused(with({.compression = WireCompression::kBFloat16}), "compression");
  expect_refused(with({.non_finite = NonFinitePolicy::kSkip}), "non_finite");
  expect_refused({.devices = two, .deterministic = true}, "deterministic");
  expect_refused({.devices = two, .replica_weights = {1, 2}}, "replica_weights");
  EXPECT_NO_THROW(MirroredStrategy({.devices = two, .cross_device_ops = {"canonical"}}));
}

TEST(MirroredOnXla, MissingDeviceErrorListsAvailableDevices) {
  try {
    MirroredStrategy strategy("xla:7-8");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    for (const char* word : {"xla:8", "xla:0 to xla:7 (cpu)", "TUTTI_XLA_CPU_DEVICES"})
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
  }
}

}  // namespace tutti::testing::tpu_strategy_test
