// Trains a model that does not fit on one device. Data parallelism runs out of memory. With layers
// split across two devices, or with weights sharded over a two-device mesh, the same model trains.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "examples/common/example_options.h"
#include "tutti/gpu.h"
#include "tutti/mesh.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

constexpr int kBatch = 64, kFeatures = 256, kHidden = 1024, kClasses = 8;

struct Options {
  std::int64_t steps = 20;
  std::int64_t memory_kib = 5600;  // memory limit of cpu:0, and of cpu:1
};

const SgdOptions kOptimizer{.learning_rate = 0.05, .momentum = 0.9};

// Returns the features of all examples. The class of an example is the index of the largest of its
// first kClasses features.
Tensor examples() { return random_normal({kBatch, kFeatures}, {.seed = 5}); }
Tensor classes() { return argmax(slice(examples(), {0, 0}, {-1, kClasses}), 1); }

// Trains on the only batch. Returns the loss of the last step.
double fit(Sequential model, const Options& options) {
  model.compile({.optimizer = kOptimizer, .loss = "sparse_categorical_crossentropy"});
  return model
      .fit(examples(), classes(),
           {.epochs = options.steps, .batch_size = kBatch, .verbose = Verbosity::kSilent})
      .at("loss")
      .back();
}

Sequential whole_model() {
  return Sequential(Input{{kFeatures}}, Dense(kHidden, {.activation = "relu", .name = "up"}),
                    Dense(kFeatures, {.name = "down"}), Dense(kClasses));
}

double one_device(const Options& options) {
  const DeviceScope scope("cpu:2");  // cpu:2 has no memory limit
  return fit(whole_model(), options);
}

double data_parallel(const Options& options) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  return fit(whole_model(), options);
}

double split_by_layers(const Options& options) {
  StagedSequential model({.devices = "cpu:0-1", .cuts = {1}}, Input{{kFeatures}},
                         Dense(kHidden, {.activation = "relu"}), Dense(kFeatures), Dense(kClasses));
  Pipeline pipeline(model,
                    [](const Tensor& labels, const Tensor& predictions) {
                      return losses::sparse_categorical_crossentropy(labels, predictions);
                    },
                    {.micro_batches = 4});
  Sgd optimizer(model.trainable_variables(), kOptimizer);
  double loss = 0.0;
  for (int step = 0; step < options.steps; ++step) {
    PipelineResult result = pipeline.gradients(examples(), classes());
    optimizer.apply_gradients(result.gradients);
    loss = result.loss.item();
  }
  return loss;
}

double cut_within_layers(const Options& options) {
  MeshOptions mesh;
  mesh.mesh = {{"data", 1}, {"model", 2}};
  // the first kernel is sharded by columns, the second by rows
  mesh.layout = {
      {"up/kernel", {"", "model"}}, {"up/bias", {"model"}}, {"down/kernel", {"model", ""}}};
  mesh.local.devices = "cpu:0-1";
  MeshStrategy strategy(mesh);
  const auto scope = strategy.scope();
  return fit(whole_model(), options);
}

// Trains with one method and prints a row of the table: the loss, and the peak memory of each
// device in bytes.
double row(const char* way, double (*train)(const Options&), const Options& options) {
  set_random_seed(1);
  const std::vector<Device> devices = parse_devices("cpu:0-2");
  for (const Device& device : devices) reset_peak_memory(device);
  const double loss = train(options);
  std::printf("%-18s %-9.6f", way, loss);
  for (const Device& device : devices) std::printf(" %9zu", device_memory(device).peak);
  std::printf("\n");
  return loss;
}

int compare(const Options& options) {
  for (const Device& device : parse_devices("cpu:0-1")) {
    set_memory_limit(device, static_cast<std::size_t>(options.memory_kib) << 10);
  }
  set_memory_limit({DeviceType::kCpu, 2}, kUnlimitedMemory);
  std::printf("%-18s %-9s %9s %9s %9s\n", "way", "loss", "cpu:0", "cpu:1", "cpu:2");
  const double expected = row("one device", one_device, options);
  bool is_refused = false;
  try {
    row("data parallel", data_parallel, options);
  } catch (const Error& error) {
    is_refused = error.code() == ErrorCode::kResourceExhausted;
    std::printf("%-18s refused: %s\n", "data parallel", error.what());
  }
  const double layers = row("split by layers", split_by_layers, options);
  const double within = row("cut within layers", cut_within_layers, options);
  const bool is_same = std::abs(layers - expected) < 1e-4 && std::abs(within - expected) < 1e-4;
  std::printf("result             %s\n", is_same ? "the same model" : "the losses differ");
  return is_refused && is_same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Flags flags("Trains a model that is too large for one device, in four ways");
  flags.add("--steps", options.steps, "number of training steps");
  flags.add("--memory-kib", options.memory_kib, "memory of each of the two devices, in KiB");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return compare(options); });
}
