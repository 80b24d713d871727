// Tests files of complete models, weights written by other frameworks, and ONNX export.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "checkpoint/checkpoint_file.h"
#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tests/support/protobuf_fields.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/estimator.h"
#include "tutti/model/functional.h"

namespace tutti::testing::model_file_test {

std::string model_path() {
  const auto* test = UnitTest::GetInstance()->current_test_info();
  const std::string folder = concat(TempDir(), "tutti_model_", test->name());
  std::filesystem::create_directories(folder);
  return folder + "/model.safetensors";
}

/// Returns a model with dropout, moving statistics, regularization, constraints, a learning rate
/// schedule, averaged weights, exclusions from weight decay, and a frozen layer.
Sequential rich_model() {
  set_random_seed(5);
  Dense frozen(8);
  frozen.freeze();
  Sequential model("classifier", Input{{4}},
                   Dense(8, {.activation = "relu",
                             .kernel_regularizer = regularizers::l2(0.02),
                             .kernel_constraint = "max_norm"}),
                   std::move(frozen), BatchNormalization(), Dropout(0.25), Dense(3));
  model.compile({.optimizer = AdamWOptions{.learning_rate = CosineDecay({.decay_steps = 40}),
                                           .clipping = {.global_clipnorm = 0.5},
                                           .ema = EmaOptions{.overwrite_frequency = 3}},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy", SparseTopKCategoricalAccuracy(2)},
                 .weighted_metrics = {"accuracy"}});
  model.optimizer().exclude_from_weight_decay({"bias"});
  return model;
}

/// Trains until 4 epochs are completed; returns losses and weights.
std::pair<std::vector<double>, std::vector<double>> go_on(Model& model) {
  const History history =
      model.fit(three_classes(22).shuffle(22, 7).batch(4),
                {.epochs = 4, .initial_epoch = model.epochs_trained(), .verbose = kSilent});
  return {history.at("loss"), weights_of(model)};
}

TEST(ModelFile, TrainingContinuesBitIdenticallyUnderAnyStrategy) {
  using Pair = std::pair<std::unique_ptr<Strategy>, std::unique_ptr<Strategy>>;
  std::vector<Pair> pairs;
  pairs.emplace_back(std::make_unique<OneDeviceStrategy>("cpu:0"),
                     std::make_unique<OneDeviceStrategy>("cpu:0"));
  pairs.emplace_back(mirrored("cpu:0-1"), mirrored("cpu:0", 2));
  pairs.emplace_back(mirrored("cpu:0-1"), central("cpu:0-1"));
  for (const auto& [saving, loading] : pairs) {
    SCOPED_TRACE(concat(label_of(*saving), " to ", label_of(*loading)));
    std::pair<std::vector<double>, std::vector<double>> expected;
    {
      const Scope scope = saving->scope();
      Sequential model = rich_model();
      model.fit(three_classes(22).shuffle(22, 7).batch(4), {.epochs = 2, .verbose = kSilent});
      model.save(model_path());
      expected = go_on(model);
    }
    set_random_seed(99);  // the seed in the file must be used instead
    const Scope scope = loading->scope();
    const std::shared_ptr<Model> model = load_model(model_path());
    EXPECT_EQ(model->name(), "classifier");
    EXPECT_EQ(model->epochs_trained(), 2);
    EXPECT_THAT(
        model->metrics_names(),
        ElementsAre("loss", "accuracy", "sparse_top_k_categorical_accuracy", "weighted_accuracy"));
    EXPECT_EQ(go_on(*model), expected);
    ASSERT_FALSE(expected.first.empty());
  }
}

Json model_json(const std::string& path) {
  return internal::read_checkpoint(path).info.about.at("model");
}

/// Applies `change` to the model's JSON in the file `path`.
void change_json(const std::string& path, const std::function<void(Json&)>& change) {
  internal::CheckpointFile file = internal::read_checkpoint(path);
  Json json = file.info.about.at("model");
  change(json);
  file.info.about.set("model", json);
  write_file_atomically(path, internal::format_checkpoint_file(file));
}

TEST(ModelFile, StoresGraphsWithSharedAndNestedLayers) {
  const SymbolicTensor a = Input{{3}, "left"}, b = Input{{3}, "right"};
  const Dense shared(4, {.activation = "tanh", .name = "shared"});
  const SymbolicTensor both = Concatenate()({shared(a), shared(b)});
  Sequential head(Input{{8}}, Dense(5, "relu"), Dense(2));
  Functional model({a, b}, {head(both), Dense(1)(Add()({shared(a), shared(b)}))}, "two");
  model.compile(
      {.optimizer = "sgd", .losses = {"mse", Huber({.delta = 0.5})}, .loss_weights = {1.0, 0.25}});
  const std::vector<Tensor> x = {random_uniform({6, 3}, {.seed = 1}),
                                 random_uniform({6, 3}, {.seed = 2})};
  const std::vector<Tensor> y = {Tensor::ones({6, 2}), Tensor::zeros({6, 1})};
  model.fit(x, y, {.epochs = 1, .verbose = kSilent});
  model.save(model_path());

  const std::shared_ptr<Model> again = load_model(model_path());
  EXPECT_NE(dynamic_cast<Functional*>(again.get()), nullptr);
  EXPECT_EQ(again->num_parameters(), model.num_parameters());
  EXPECT_EQ(weights_of(*again), weights_of(model));
  const std::vector<Tensor> expected = model.predict_all(x), actual = again->predict_all(x);
  ASSERT_EQ(actual.size(), 2u);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(actual[i].to_doubles(), expected[i].to_doubles()) << "output " << i;
  EXPECT_EQ(again->edges(), model.edges());
  const Json before = model_json(model_path());
  again->save(model_path());
  EXPECT_EQ(model_json(model_path()).dump(), before.dump());
  EXPECT_EQ(again->evaluate(x, y).at("loss"), model.evaluate(x, y).at("loss"));
}

TEST(ModelFile, LoadsAsCheckpointOrWeights) {
  Sequential model = rich_model();
  model.save(model_path());
  Sequential other = rich_model();
  other.variables()[0].assign(Tensor::zeros(other.variables()[0].shape()));
  other.load_weights(model_path());
  EXPECT_EQ(weights_of(other), weights_of(model));
  other.checkpoint().restore(model_path());
  // A checkpoint contains no model, so load_model() must refuse it.
  model.checkpoint().save(model_path());
  EXPECT_INVALID((void)load_model(model_path()),
                 "the file contains no model; expected a file written by Model::save()");
}

TEST(ModelFile, OmitsCompileArgumentsOnRequest) {
  Sequential model = small_model();
  model.compile({.optimizer = "adam", .loss = Loss("own", [](const Tensor& y, const Tensor& p) {
                                        return losses::mean_squared_error(y, p);
                                      })});
  EXPECT_ERROR(model.save(model_path()), kUnimplemented,
               "the loss 'own' is a custom function, so it cannot be saved; save "
               "with {.compile_arguments = false}");
  model.save(model_path(), {.compile_arguments = false});
  const std::shared_ptr<Model> again = load_model(model_path());
  EXPECT_FALSE(again->compiled());
  EXPECT_EQ(weights_of(*again), weights_of(model));
  again->compile({.optimizer = "adam", .loss = "mse"});
  EXPECT_EQ(again->checkpoint().restore(model_path()).step, 0);
}

/// User-defined model that can be saved, because it passes its options to made_with().
class OwnModel : public Model {
 public:
  struct Options {
    std::int64_t width = 4;
    std::string activation = "relu";
  };
  explicit OwnModel(Options options) : dense_(options.width, options.activation) {
    made_with(options);
    set_built(Shape{2}, add_layer(dense_, Shape{2}));
  }

 protected:
  Tensor call(const Tensor& input, CallContext context) const override {
    return dense_(input, context);
  }

 private:
  Dense dense_;
};

TEST(ModelFile, StoresCustomModels) {
  OwnModel model({.width = 3, .activation = "tanh"});
  model.save(model_path());
  EXPECT_ERROR((void)load_model(model_path()), kNotFound, "there is no layer 'OwnModel'");
  register_layer<OwnModel, OwnModel::Options>();
  const std::shared_ptr<Model> again = load_model(model_path());
  const Tensor x = Tensor::ones({1, 2});
  EXPECT_EQ((*again)(x).to_doubles(), model(x).to_doubles());
}

TEST(ModelFile, KeepsWeightsTrainedByEstimator) {
  const auto layers = [] { return Sequential(Input{{4}}, Dense(3, "relu"), Dense(1)); };
  const std::string folder = std::filesystem::path(model_path()).parent_path() / "estimator";
  std::filesystem::remove_all(folder);
  Estimator estimator(
      [&](const Tensor& features, const Tensor& labels, EstimatorMode mode) -> EstimatorSpec {
        const Tensor y = layers()(features);
        if (mode == EstimatorMode::kPredict) return {.predictions = y};
        return {.loss = losses::mean_squared_error(labels, y), .optimizer = "sgd"};
      },
      {.model_dir = folder});
  const auto data = [] { return three_classes(12).batch(4); };
  estimator.train(data);
  Sequential model = layers();
  model.load_weights(concat(folder, "/step_", estimator.global_step()));
  model.save(model_path());
  EXPECT_EQ(load_model(model_path())->predict(data()).to_doubles(),
            estimator.predict(data).to_doubles());
}

TEST(ModelFile, InvalidFileErrorNamesCalledFunction) {
  EXPECT_ERROR((void)load_model("/nowhere.safetensors"), kNotFound,
               "load_model: ", "'/nowhere.safetensors'");
  write_file_atomically(model_path(), "sepal,petal\n1.0,2.0\n");
  EXPECT_ERROR((void)load_model(model_path()), kDataLoss, "load_model: ", model_path(),
               "is this a complete safetensors file");
}

TEST(ModelFile, RejectsDamagedFilesAndNewerFormats) {
  Sequential model = small_model();
  model.save(model_path());
  const auto refused = [](ErrorCode code, const std::vector<std::string>& parts) {
    expect_error(code, parts, [] { (void)load_model(model_path()); });
  };
  change_json(model_path(), [](Json& json) { json.set("format", 2); });
  refused(ErrorCode::kUnimplemented, {"expected a model of format 1 to 1, got 2", "later one"});

  model.save(model_path());
  change_json(model_path(), [](Json& json) { json.set("extra", 1); });
  refused(ErrorCode::kInvalidArgument, {model_path(), "there is no option 'extra'"});

  model.save(model_path());
  change_json(model_path(), [](Json& json) { json.set("layer", "Sequential"); });
  refused(ErrorCode::kInvalidArgument, {model_path(), "'layer'", "expected an object"});

  model.save(model_path());
  std::string bytes = read_file(model_path());
  bytes[bytes.find("Sequential")] = 's';
  write_file_atomically(model_path(), bytes);
  refused(ErrorCode::kDataLoss, {model_path(), "header is damaged"});

  write_file_atomically(model_path(), read_file(model_path()).substr(0, 100));
  refused(ErrorCode::kDataLoss, {model_path()});
}

/// User-defined optimizer with one option.
struct HalfRateOptions;
class HalfRate : public Optimizer {
 public:
  HalfRate(std::span<const Variable> variables, const HalfRateOptions& options);
};
struct HalfRateOptions {
  using MadeOptimizer = HalfRate;
  double rate = 1.0;
};
HalfRate::HalfRate(std::span<const Variable> variables, const HalfRateOptions& options)
    : Optimizer(variables, std::make_unique<SgdRule>(), {.learning_rate = options.rate / 2}) {}

TEST(ModelFile, StoresCustomOptimizers) {
  Sequential model = small_model();
  model.compile({.optimizer = HalfRateOptions{.rate = 0.25}, .loss = "mse"});
  EXPECT_ERROR(model.save(model_path()), kUnimplemented,
               "the optimizer of HalfRateOptions cannot be saved; call "
               "register_optimizer<HalfRateOptions>()");
  register_optimizer<HalfRateOptions>();
  model.save(model_path());
  EXPECT_EQ(load_model(model_path())->optimizer().learning_rate(), 0.125);
  const OptimizerSpec made(OptimizerSpec::Factory([](std::span<const Variable> variables) {
    return std::make_unique<HalfRate>(variables, HalfRateOptions{});
  }));
  EXPECT_ERROR((void)made.to_json(), kUnimplemented, "created by a custom function");
}

TEST(ModelFile, StoresOptimizersLossesAndMetrics) {
  const auto same = [](const OptimizerSpec& spec) {
    const Json json = Json::parse(spec.to_json().dump());
    EXPECT_EQ(OptimizerSpec::from_json(json).to_json().dump(), json.dump());
  };
  for (const std::string& name : optimizer_names()) same(OptimizerSpec(name));
  same(with_dynamic_loss_scale("adam", {.growth_steps = 7}));
  for (const LearningRate& rate :
       {LearningRate(0.25), LearningRate(ExponentialDecay({.decay_steps = 3})),
        LearningRate(PiecewiseConstantDecay({1, 5}, {0.1, 0.2, 0.3})),
        LearningRate(PolynomialDecay({.power = 2.0})), LearningRate(InverseTimeDecay({})),
        LearningRate(CosineDecay({.warmup_target = 0.5, .warmup_steps = 2})),
        LearningRate(CosineDecayRestarts({})),
        LearningRate(LinearWarmUp({.then = CosineDecay({.decay_steps = 9}), .warm_up_steps = 3})),
        LearningRate(WarmUpStableDecay({.shape = DecayShape::kCosine}))}) {
    const LearningRate again = LearningRate::from_json(Json::parse(rate.to_json().dump()));
    for (int i = 0; i < 12; ++i) EXPECT_EQ(again.at(i), rate.at(i)) << rate.to_json().dump();
  }
  const Tensor labels = Tensor::from<float>({2, 2}, {0, 1, 1, 0});
  const Tensor predictions = Tensor::from<float>({2, 2}, {0.1f, 0.7f, 0.6f, 0.2f});
  for (const Loss& loss :
       {Loss("mse"), Loss(Huber({.delta = 0.25})), Loss(LogCosh({LossReduction::kSum})),
        Loss(CategoricalCrossentropy({.from_logits = false, .label_smoothing = 0.1})),
        Loss(BinaryFocalCrossentropy({.focal = {.from_logits = false, .gamma = 3.0}}))}) {
    const Loss again = Loss::from_json(Json::parse(loss.to_json().dump()));
    EXPECT_EQ(again.per_example(labels, predictions).to_doubles(),
              loss.per_example(labels, predictions).to_doubles());
    EXPECT_EQ(again.reduction(), loss.reduction());
    EXPECT_EQ(again.name(), loss.name());
  }
  for (const MetricSpec& spec :
       {MetricSpec("auc"), MetricSpec(Auc({.num_thresholds = 5})),
        MetricSpec(Precision({.threshold = 0.65})), MetricSpec(F1Score({.num_classes = 2})),
        MetricSpec(BinaryAccuracy("b", 0.15)), MetricSpec(TopKCategoricalAccuracy(1))}) {
    const Json json = Json::parse(spec.to_json().dump());
    const MetricSpec again = MetricSpec::from_json(json);
    EXPECT_EQ(again.to_json().dump(), json.dump());
    const auto expected = spec.make("mse"), actual = again.make("mse");
    expected->update_state(labels, predictions);
    actual->update_state(labels, predictions);
    EXPECT_EQ(actual->result().item_double(), expected->result().item_double()) << json.dump();
  }
}

// Files that foreign_weights/write.py wrote with Python's safetensors package.
const std::string kFromPyTorch = TUTTI_FOREIGN_WEIGHTS "/pytorch.safetensors";
const std::string kFromKeras = TUTTI_FOREIGN_WEIGHTS "/keras.safetensors";

Tensor foreign_tensor(const std::string& path, const std::string& name) {
  for (const NamedTensor& tensor : parse_safetensors(read_file(path), path).tensors)
    if (tensor.name == name) return tensor.value;
  fail(ErrorCode::kNotFound, path, " has no ", name);
}

Sequential as_in_pytorch() {
  return Sequential(Input{{6, 6, 2}}, Conv2D(4, 3, {.padding = "same", .activation = "relu"}),
                    DepthwiseConv2D(3, {.depth_multiplier = 2}), GlobalAveragePooling2D(),
                    Dense(3));
}

LoadWeightsOptions names_of_pytorch() {
  return {.rename = {{"features.0.weight", "conv2d/kernel"},
                     {"features.0.bias", "conv2d/bias"},
                     {"features.2.weight", "depthwise_conv2d/kernel"},
                     {"features.2.bias", "depthwise_conv2d/bias"},
                     {"classifier.weight", "dense/kernel"},
                     {"classifier.bias", "dense/bias"}},
          .transpose = {"kernel"}};
}

TEST(ImportedWeights, PyTorchNamesAreMappedAndKernelsTransposed) {
  Sequential model = as_in_pytorch();
  model.load_weights(kFromPyTorch, names_of_pytorch());
  const Tensor y = model(foreign_tensor(kFromPyTorch, "test.x"));
  expect_near(y.to_doubles(), foreign_tensor(kFromPyTorch, "test.y").to_doubles(), 1e-5);
}

TEST(ImportedWeights, KerasNamesAreMapped) {
  Sequential model(Input{{3}}, Dense(6, "tanh"), Dense(2));
  model.load_weights(kFromKeras, {.rename = {{"layers/dense/vars/0", "dense/kernel"},
                                             {"layers/dense/vars/1", "dense/bias"},
                                             {"layers/dense_1/vars/0", "dense_1/kernel"},
                                             {"layers/dense_1/vars/1", "dense_1/bias"}}});
  const Tensor y = model(foreign_tensor(kFromKeras, "test/x"));
  expect_near(y.to_doubles(), foreign_tensor(kFromKeras, "test/y").to_doubles(), 1e-5);
}

TEST(ImportedWeights, PartialImportRequiresNonStrictMode) {
  Sequential model = as_in_pytorch();
  const std::vector<double> before = model.variables()[4].value().to_doubles();
  LoadWeightsOptions options = names_of_pytorch();
  options.rename.erase("classifier.weight");
  EXPECT_INVALID(model.load_weights(kFromPyTorch, options), "variable 'dense/kernel' is missing");
  options.strict = false;
  model.load_weights(kFromPyTorch, options);
  EXPECT_EQ(model.variables()[4].value().to_doubles(), before);
  EXPECT_EQ(model.variables()[5].value().to_doubles(),
            foreign_tensor(kFromPyTorch, "classifier.bias").to_doubles());
}

TEST(ImportedWeights, ErrorListsNamesInFileAndModel) {
  Sequential model = as_in_pytorch();
  const std::vector<double> before = weights_of(model);
  const auto refused = [&](const LoadWeightsOptions& options) {
    return error_of([&] { model.load_weights(kFromPyTorch, options); });
  };
  const std::string missing = refused({});
  EXPECT_THAT(missing, HasSubstr("load_weights: "));
  EXPECT_THAT(missing, HasSubstr(kFromPyTorch));
  EXPECT_THAT(missing, HasSubstr("the file has: 'bn.num_batches_tracked' int64 [], "
                                 "'classifier.bias' float32 [3], 'classifier.weight' float32 [3, "
                                 "8], "));
  EXPECT_THAT(missing, HasSubstr("; the program expects: 'conv2d/kernel' float32 [3, 3, 2, 4], "
                                 "'conv2d/bias' "));

  LoadWeightsOptions options = names_of_pytorch();
  options.transpose = {};
  EXPECT_THAT(refused(options), HasSubstr("'dense/kernel': expected float32 [8, 3], got float32 "
                                          "[3, 8]"));
  options.strict = false;  // non-strict import permits missing weights, but not different shapes
  EXPECT_THAT(refused(options), HasSubstr("'dense/kernel': expected float32 [8, 3]"));

  options = names_of_pytorch();
  options.transpose = {"kernle"};
  EXPECT_THAT(refused(options), HasSubstr("no variable's name contains 'kernle'"));
  options = names_of_pytorch();
  options.rename["classifier.wieght"] = "dense/kernel";
  EXPECT_THAT(refused(options), HasSubstr("rename: the file has no tensor 'classifier.wieght'"));
  options = names_of_pytorch();
  options.rename["classifier.weight"] = "dens/kernel";
  EXPECT_THAT(refused(options), HasSubstr("rename: there is no variable 'dens/kernel'"));
  options.rename["classifier.weight"] = "dense/bias";
  EXPECT_THAT(refused(options), HasSubstr("rename: 'dense/bias' is listed twice"));
  EXPECT_EQ(weights_of(model), before);
}

using namespace protobuf_fields;

std::string onnx_path() {  // a path per test, because tests run concurrently
  return TempDir() + "tutti_" + UnitTest::GetInstance()->current_test_info()->name() + ".onnx";
}

TEST(OnnxExport, WritesOpset17Model) {
  Sequential model(Input{{3}}, Dense(2, {.name = "scores"}));
  export_onnx(model, onnx_path());
  const std::string bytes = read_file(onnx_path());
  const auto fields = fields_of(bytes);
  EXPECT_EQ(fields.at(1), std::string_view("\x08"));
  EXPECT_EQ(fields.at(2), "tutti");
  EXPECT_EQ(fields_of(fields.at(8)).at(2), std::string_view("\x11"));  // 17
  const auto graph = fields_of(fields.at(7));
  EXPECT_EQ(graph.at(2), "sequential");
  EXPECT_EQ(fields_of(graph.at(11)).at(1), "input");
  EXPECT_EQ(fields_of(graph.at(12)).at(1), "sequential");
  EXPECT_EQ(fields_of(graph.at(1)).at(4), "Identity");  // the last node of the graph
  const auto bias = fields_of(graph.at(5));             // the last constant of the graph
  EXPECT_EQ(bias.at(8), "scores/bias");
  EXPECT_EQ(bias.at(9), std::string_view("\0\0\0\0\0\0\0\0", 8));
}

TEST(OnnxExport, ErrorNamesUnsupportedLayers) {
  const auto refused = [](Sequential model) {
    return error_of([&] { export_onnx(model, onnx_path()); });
  };
  EXPECT_THAT(refused(Sequential(Input{{4, 3}}, LSTM(2))),
              HasSubstr("export_onnx: layer 'lstm' (LSTM): cannot be exported; expected one "
                        "of Dense, Conv2D"));
  EXPECT_THAT(refused(Sequential(Input{{3}}, Dense(2, "mish"))),
              HasSubstr("layer 'dense' (Dense): the activation 'mish' cannot be"));
  EXPECT_THAT(refused(Sequential(Input{{3}}, Relu({.threshold = 1.0}))), HasSubstr("a threshold"));
  Dense wide(2);
  wide.set_dtype_policy("float64");
  EXPECT_THAT(refused(Sequential(Input{{3}}, std::move(wide))),
              HasSubstr("computes in float64; expected float32"));
}

}  // namespace tutti::testing::model_file_test
