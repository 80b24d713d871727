// TensorFlow's guide "Use TPUs" as a program: trains with fit, then with a custom loop, on XLA
// devices.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "examples/common/example_options.h"
#include "tutti/core/flags.h"
#include "tutti/readers.h"
#include "tutti/tpu.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

constexpr std::int64_t kBatchSize = 200;

struct GuideOptions {
  std::int64_t replicas = 0;
  std::int64_t steps = 300;  // number of steps with fit, and again with the custom loop
  double min_accuracy = 0.0;
  std::string data_dir = "";
};

Sequential create_model() {
  return Sequential(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(),
                    Flatten(), Dense(128, {.activation = "relu"}), Dense(10));
}

/// Returns batches with the same number of rows, so that one XLA program suffices for all steps.
Dataset batches_of(const GuideOptions& options, Split split) {
  Dataset data = load_mnist(options.data_dir, split);
  if (split == Split::kTrain) data = data.shuffle(10'000, 1);
  return data.batch(kBatchSize, {.drop_remainder = true});
}

double fit(const GuideOptions& options) {
  Sequential model = create_model();
  model.compile(
      {.optimizer = "adam", .loss = "sparse_categorical_crossentropy", .metrics = {"accuracy"}});
  model.fit(batches_of(options, Split::kTrain).repeat(),
            {.epochs = 1, .steps_per_epoch = options.steps});
  return model.evaluate(batches_of(options, Split::kTest)).at("accuracy");
}

void train_by_hand(const GuideOptions& options, TpuStrategy& strategy) {
  Sequential model = create_model();
  Adam optimizer(model.trainable_variables(), {});
  Mean training_loss("training_loss");
  SparseCategoricalAccuracy training_accuracy;
  const auto train_step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor losses = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    optimizer.minimize(tape, compute_average_loss(losses, batch.global_rows()));
    training_loss.update_state(losses);
    training_accuracy.update_state(batch.labels(), logits);
  };
  std::int64_t step = 0;
  for (const PerReplica<Batch>& batch :
       strategy.distribute_dataset(batches_of(options, Split::kTrain).repeat())) {
    strategy.run(train_step, batch);
    if (++step == options.steps) break;
  }
  std::printf("by hand    %lld steps, training loss %.4f, accuracy %.4f\n",
              static_cast<long long>(step), training_loss.result().item_double(),
              training_accuracy.result().item_double());
}

int train(const GuideOptions& options) {
  const TpuClusterResolver resolver("local");
  std::printf("devices    %d of %s: %s\n", resolver.num_devices(), resolver.platform().c_str(),
              xla_devices().plugin.c_str());
  TpuStrategy strategy(resolver, {.replicas = static_cast<int>(options.replicas)});
  const auto scope = strategy.scope();
  const double accuracy = fit(options);
  std::printf("fit        %lld steps, test accuracy %.4f\n", static_cast<long long>(options.steps),
              accuracy);
  train_by_hand(options, strategy);
  std::printf("programs   %d\n", strategy.num_compiled());
  return accuracy >= options.min_accuracy ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  GuideOptions options;
  Flags flags("Runs TensorFlow's guide \"Use TPUs\" on Fashion-MNIST");
  flags.add("--replicas", options.replicas,
            "number of replicas; 0: one per TPU, or one on the CPU");
  flags.add("--steps", options.steps, "steps of each of the two training loops");
  flags.add("--min-accuracy", options.min_accuracy, "fails if fit's test accuracy is lower");
  flags.add("--data-dir", options.data_dir, "folder with the data set");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return train(options); });
}
