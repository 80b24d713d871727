// Trains a small convolutional network on Fashion-MNIST with a custom training loop: the program of
// tf.distribute's custom-training tutorial.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "examples/common/example_options.h"
#include "examples/common/metrics_file.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

// Returns the network of the tutorial. If `regularized`, it also has Dropout and
// BatchNormalization.
Sequential make_model(bool regularized) {
  const Regularizer l2 = regularizers::l2(1e-5);
  const Conv2DOptions conv{.activation = "relu", .kernel_regularizer = l2};
  const DenseOptions hidden{.activation = "relu", .kernel_regularizer = l2};
  const DenseOptions logits{.kernel_regularizer = l2};
  if (regularized) {
    return Sequential(Input{{28, 28, 1}}, Conv2D(32, 3, conv), BatchNormalization(), MaxPooling2D(),
                      Conv2D(64, 3, conv), MaxPooling2D(), Flatten(), Dropout(0.25),
                      Dense(64, hidden), Dense(10, logits));
  }
  return Sequential(Input{{28, 28, 1}}, Conv2D(32, 3, conv), MaxPooling2D(), Conv2D(64, 3, conv),
                    MaxPooling2D(), Flatten(), Dense(64, hidden), Dense(10, logits));
}

struct Examples {
  std::int64_t train = 0, test = 0;  // numbers of examples; 0 means all
};

int train(const ExampleOptions& options, bool regularized, const Examples& examples,
          double min_accuracy) {
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  if (const auto code = strategy->serve()) return *code;  // tasks that do not train return here
  print_setup(options, *strategy);

  Dataset train_data = load_mnist(options.data_dir, Split::kTrain);
  if (examples.train > 0) train_data = train_data.take(examples.train);
  Dataset test_data = load_mnist(options.data_dir, Split::kTest);
  if (examples.test > 0) test_data = test_data.take(examples.test);
  DistributedDataset train_batches = strategy->distribute_dataset(
      train_data.cache().shuffle(60'000, /*seed=*/options.seed).batch(options.batch_size));
  DistributedDataset test_batches =
      strategy->distribute_dataset(test_data.batch(options.batch_size));

  auto scope = strategy->scope();  // variables created from here on belong to the strategy
  Sequential model = make_model(regularized);
  Adam optimizer(model.trainable_variables());
  if (options.dtype_policy == "mixed_float16") optimizer.use_dynamic_loss_scale({});
  SparseCategoricalAccuracy test_accuracy;

  auto train_step = [&](const Batch& batch) {
    GradientTape tape;
    // Under a mixed policy, logits have 16 bits, but the loss needs more precision.
    Tensor logits = cast(model(batch.features(), {.training = true}), DType::kFloat32);
    Tensor per_example = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    // Divides by the number of rows in the global batch, so that the sum over replicas is the mean.
    Tensor loss = compute_average_loss(per_example, batch.global_rows()) +
                  scale_regularization_loss(model.losses());
    // Runs the backward pass while summing gradients over replicas, then updates the variables.
    optimizer.minimize(tape, loss);
    return loss;
  };
  auto test_step = [&](const Batch& batch) {
    test_accuracy.update_state(batch.labels(), model(batch.features()));
  };

  TrainingSession session(*strategy, model.variables(), optimizer, train_batches,
                          session_options(options));
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : train_batches) {
        PerReplica<Tensor> per_replica = strategy->run(train_step, batch);
        Tensor loss = strategy->reduce(ReduceOp::kSum, per_replica);
        if (!session.step(loss.item(), batch[0].global_rows())) break;
      }
      test_accuracy.reset_state();
      for (const PerReplica<Batch>& batch : test_batches) strategy->run(test_step, batch);
      session.end_epoch("accuracy", test_accuracy.result().item());
    }
  });
  return finish(session, options, *strategy, model.variables(), optimizer, min_accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  bool regularized = false;
  Examples examples;
  double min_accuracy = 0.0;
  const int code = parse_options(
      argc, argv, "Trains on Fashion-MNIST with a custom training loop", options,
      [&](Flags& flags) {
        flags.add("--regularized", regularized, "adds Dropout and BatchNormalization");
        flags.add("--train-examples", examples.train, "trains on the first N examples; 0: all");
        flags.add("--test-examples", examples.test, "evaluates the first N examples; 0: all");
        flags.add("--min-accuracy", min_accuracy, "fails below this test accuracy");
      });
  if (code >= 0) return code;
  return run_example([&] { return train(options, regularized, examples, min_accuracy); });
}
