// Krizhevsky's "one weird trick" on one mesh: data parallelism for convolutions, model parallelism
// for dense layers. Prints the time and the bytes for schemes (a), (b) and (c) of his paper, and
// for dense layers with their own batch size.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "examples/common/example_options.h"
#include "examples/common/sharded_dense.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

constexpr int kBatch = 128, kFeatures = 8 * 8 * 16, kHidden = 512;

struct Options {
  std::int64_t steps = 20;
  std::int64_t workers = 4;
};

// Trains several steps on one batch, prints a row of the table, and returns the last loss.
double train(const char* name, DenseScheme scheme, int updates, const Options& options) {
  set_random_seed(1);
  const int workers = static_cast<int>(options.workers);
  const Tensor x = random_uniform({kBatch, 16, 16, 1}, {.seed = 5});
  const Tensor y =
      // the brightest of the first four pixels
      argmax(slice(reshape(x, {kBatch, 256}), {0, 0}, {-1, 4}), 1);
  MeshStrategy strategy({.mesh = {{"worker", workers}}, .layout = sharded_dense_layouts()});
  const auto scope = strategy.scope();
  const Sequential dense(Input{{kFeatures}},
                         Dense(kHidden, {.activation = "relu", .name = "hidden"}),
                         Dense(4, {.name = "output"}));
  const Conv2DOptions conv{.padding = "same", .activation = "relu"};
  const Sequential convolutions(Input{{16, 16, 1}}, Conv2D(16, 3, conv), MaxPooling2D(2),
                                Flatten());
  Sgd dense_optimizer(dense.trainable_variables(), 0.1);
  Sgd optimizer(convolutions.trainable_variables(), 0.1);

  TrainingRecord record;
  double last = 0.0;
  const Dataset data = Dataset::from_tensor_slices(x, y).batch(kBatch).repeat(options.steps);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const PerReplica<Tensor> losses = strategy.run(
        [&](const Batch& rows) {
          return hybrid_step(rows, convolutions, optimizer, dense, dense_optimizer, scheme,
                             updates);
        },
        batch);
    last = losses[0].item_double();
    record.step(static_cast<float>(last), kBatch);
  }
  // The table excludes all_reduce, which sums the losses and the gradients of convolutions.
  MeshTraffic exchanged;
  for (const auto& [kind, traffic] : strategy.traffic()) {
    if (kind == "all_reduce") continue;
    exchanged.bytes += traffic.bytes;
    exchanged.busiest_bytes += traffic.busiest_bytes;
  }
  const auto steps = static_cast<std::uint64_t>(options.steps);
  std::printf("%-13s %7d %9.2f %11llu %11llu  %.6f\n", name, updates,
              1e3 * kBatch / record.examples_per_second(),
              static_cast<unsigned long long>(exchanged.bytes / steps),
              static_cast<unsigned long long>(exchanged.busiest_bytes / steps), last);
  return last;
}

int compare(const Options& options) {
  constexpr int kWeights = (kFeatures + 1) * kHidden + (kHidden + 1) * 4;
  std::printf("data parallelism would exchange %d bytes of dense gradients per step\n",
              // All workers but one send each gradient and receive its sum.
              2 * 4 * (static_cast<int>(options.workers) - 1) * kWeights);
  std::printf("%-13s %7s %9s %11s %11s  loss\n", "scheme", "updates", "ms/step", "bytes",
              "busiest");
  const double a = train("all at once", DenseScheme::kAllAtOnce, 1, options);
  const double b = train("one by one", DenseScheme::kOneByOne, 1, options);
  const double c = train("shares of all", DenseScheme::kSharesOfAll, 1, options);
  train("shares of all", DenseScheme::kSharesOfAll, static_cast<int>(options.workers), options);
  return std::abs(a - b) < 1e-4 && std::abs(a - c) < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Flags flags("Trains with data-parallel convolutions and model-parallel dense layers");
  flags.add("--steps", options.steps, "number of steps for each scheme");
  flags.add("--workers", options.workers, "number of devices, whose square divides 128");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return compare(options); });
}
