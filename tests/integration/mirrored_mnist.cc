// Counterpart of examples/horovod_mnist.cc under MirroredStrategy, which provides the reference
// weights.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: mirrored_mnist REPLICAS BATCH_OF_A_REPLICA STEPS. Prints the hash of the weights.
#include <cstdio>
#include <cstdlib>

#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::int64_t replicas = std::atoll(argv[1]);
  const std::int64_t global_batch = replicas * std::atoll(argv[2]);
  set_random_seed(1);
  MirroredStrategy strategy({.devices = "cpu:0", .replicas = static_cast<int>(replicas)});
  DistributedDataset batches = strategy.distribute_dataset(
      load_mnist("").repeat().shuffle(10'000, 1).batch(global_batch).take(std::atoll(argv[3])));
  const auto scope = strategy.scope();
  Sequential model(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}),
                   Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(2), Dropout(0.25), Flatten(),
                   Dense(128, "relu"), Dropout(0.5), Dense(10));
  Adam optimizer(model.trainable_variables(), 0.001 * static_cast<double>(replicas));
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor losses = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    optimizer.minimize(tape, compute_average_loss(losses, global_batch));
  };
  for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  std::printf("weights %s\n", hash_variables(model.variables()).c_str());
}
