// Horovod's program for MNIST: each process trains on its own batches, and gradients are averaged.
// SPDX-License-Identifier: Apache-2.0
//
//     tutti run -n 4 -- horovod_mnist
//     mpirun -n 4 horovod_mnist
#include <cstdio>

#include "examples/common/example_options.h"
#include "tutti/horovod.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct Options {
  // batch size per process; total number of steps across all processes
  std::int64_t batch_size = 128, steps = 10'000, seed = 1;
  std::string data_dir, checkpoint;
};

int train(const Options& options) {
  hvd::init();
  const auto seed = static_cast<std::uint64_t>(options.seed);
  // Weights differ between ranks until they are broadcast below.
  set_random_seed(seed + static_cast<std::uint64_t>(hvd::rank()));

  Dataset dataset = load_mnist(options.data_dir)
                        .repeat()
                        .shuffle(10'000, seed)
                        .batch(options.batch_size)
                        .shard(hvd::size(), hvd::rank())
                        .take(options.steps / hvd::size());
  Sequential model(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}),
                   Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(2), Dropout(0.25), Flatten(),
                   Dense(128, "relu"), Dropout(0.5), Dense(10));
  Adam adam(model.trainable_variables(), 0.001 * hvd::size());
  hvd::DistributedOptimizer optimizer(adam);
  hvd::broadcast_variables(model.variables(), 0);
  hvd::broadcast_variables(adam.state_variables(), 0);

  std::uint64_t step = 0;
  for (const Element& batch : dataset) {
    const auto rank = static_cast<std::uint32_t>(hvd::rank());
    // Dropout drops different elements in each process.
    const RandomContextScope dropout({seed, step, rank});
    GradientTape tape;
    Tensor logits = model(batch[0], {.training = true});
    Tensor losses = losses::sparse_categorical_crossentropy(batch[1], logits);
    Tensor loss = compute_average_loss(losses, options.batch_size);
    optimizer.minimize(tape, loss);
    if (step % 10 == 0 && hvd::rank() == 0) {
      std::printf("Step #%d\tLoss: %.6f\n", static_cast<int>(step), loss.item());
    }
    ++step;
  }
  const std::string hash = hash_variables(model.variables());
  std::printf("rank %d of %d, weights %s\n", hvd::rank(), hvd::size(), hash.c_str());
  if (!options.checkpoint.empty() && hvd::rank() == 0) {
    save_weights(options.checkpoint, model.variables());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Flags flags("Trains on Fashion-MNIST in Horovod's style");
  flags.add("--batch-size", options.batch_size, "batch size of each process");
  flags.add("--steps", options.steps, "total number of steps of all processes");
  flags.add("--seed", options.seed, "seed of weights, shuffling and dropout");
  flags.add("--data-dir", options.data_dir, "folder with the data set");
  flags.add("--checkpoint", options.checkpoint, "file for the weights");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return train(options); });
}
