// Krizhevsky's "one weird trick": data parallelism for convolutions, model parallelism for dense
// layers. Prints time and bytes of its schemes (a), (b) and (c), and of a separate batch size for
// the dense layers.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "examples/common/example_options.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

constexpr int kReplicas = 4, kBatch = 128, kFeatures = 8 * 8 * 16, kHidden = 512;

// Trains for some steps on one batch, prints a row of the table, and returns the last loss.
float train(HybridDenseOptions options, std::int64_t steps) {
  set_random_seed(1);
  Tensor x = random_uniform({kBatch, 16, 16, 1}, {.seed = 5});
  Tensor y = argmax(slice(reshape(x, {kBatch, 256}), {0, 0}, {-1, 4}), 1);  // brightest of four

  ParallelDensePair layers(
      kHidden, 4, {.devices = "cpu:0-3", .activation = "relu", .input_shape = Shape{kFeatures}});
  options.optimizer = SgdOptions{.learning_rate = 0.1};
  HybridDense dense(layers, "sparse_categorical_crossentropy", options);
  MirroredStrategy strategy("cpu:0-3");
  auto scope = strategy.scope();
  const Conv2DOptions conv{.padding = "same", .activation = "relu"};
  Sequential convolutions(Input{{16, 16, 1}}, Conv2D(16, 3, conv), MaxPooling2D(2), Flatten());
  Sgd optimizer(convolutions.trainable_variables(), 0.1);

  TrainingRecord record;
  float last = 0.0f;
  Dataset data = Dataset::from_tensor_slices(x, y).batch(kBatch).repeat(steps);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    PerReplica<Tensor> losses = strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          Tensor features = convolutions(part.features(), {.training = true});
          Tensor loss = dense.train(features, part.labels());
          optimizer.minimize(tape, loss);
          return loss;
        },
        batch);
    last = strategy.reduce(ReduceOp::kSum, losses).item();
    record.step(last, kBatch);
  }
  const HybridStep step = dense.last_step();
  std::printf("%-13s %7d %9.2f %11zu %11zu  %.6f\n", std::string(to_string(options.scheme)).c_str(),
              step.num_updates, 1e3 * kBatch / record.examples_per_second(), step.bytes(),
              step.busiest_bytes(), static_cast<double>(last));
  return last;
}

int compare(std::int64_t steps) {
  constexpr int kWeights = (kFeatures + 1) * kHidden + (kHidden + 1) * 4;
  std::printf("dense gradients, summed by data parallelism: %d bytes a step\n",
              2 * 4 * (kReplicas - 1) * kWeights);  // to one device and back
  std::printf("%-13s %7s %9s %11s %11s  loss\n", "scheme", "updates", "ms/step", "bytes",
              "busiest");
  const float a = train({.scheme = HybridScheme::kAllAtOnce}, steps);
  const float b = train({.scheme = HybridScheme::kOneByOne}, steps);
  const float c = train({.scheme = HybridScheme::kSharesOfAll}, steps);
  train({.scheme = HybridScheme::kSharesOfAll, .dense_batch = kBatch / kReplicas}, steps);
  return std::abs(a - b) < 1e-4 && std::abs(a - c) < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t steps = 20;
  Flags flags("Trains with convolutions by data and dense layers by model");
  flags.add("--steps", steps, "under each scheme");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return compare(steps); });
}
