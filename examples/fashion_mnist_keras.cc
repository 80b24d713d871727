// Trains a convolutional network on Fashion-MNIST with Keras's compile and fit.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "examples/common/fit_recorder.h"
#include "tutti/readers.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

int train(const ExampleOptions& options, std::int64_t test_examples, double min_accuracy) {
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  if (const auto code = strategy->serve()) return *code;  // tasks that do not train return here
  print_setup(options, *strategy);
  const Dataset data = load_mnist(options.data_dir, Split::kTrain);
  Dataset test = load_mnist(options.data_dir, Split::kTest);
  if (test_examples > 0) test = test.take(test_examples);
  test = test.batch(options.batch_size);

  auto scope = strategy->scope();
  Sequential model(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(),
                   Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(), Flatten(),
                   Dense(64, {.activation = "relu"}), Dense(10));
  model.compile(
      {.optimizer = "adam", .loss = "sparse_categorical_crossentropy", .metrics = {"accuracy"}});
  if (strategy->is_chief()) std::printf("%s", model.summary().c_str());

  TrainingRecord record = make_record(options);
  FitOptions fit = fit_options(options, record, data.cardinality().value());
  fit.validation_data = test;
  const CheckpointedFit checkpoints(options, model, fit);
  model.fit(data.shuffle(60'000, options.seed).batch(options.batch_size), fit);
  checkpoints.save(record.steps());

  const Logs result = model.evaluate(test);
  write_metrics(options, record, result.at("accuracy"), *strategy, model.variables(),
                model.optimizer().state_variables());
  return report(*strategy, result, record, min_accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  std::int64_t test_examples = 0;
  double min_accuracy = 0.0;
  const int code = parse_options(
      argc, argv, "Trains on Fashion-MNIST with compile and fit", options, [&](Flags& flags) {
        flags.add("--test-examples", test_examples, "evaluates the first N examples; 0: all");
        flags.add("--min-accuracy", min_accuracy, "fails below this test accuracy");
      });
  return code >= 0 ? code
                   : run_example([&] { return train(options, test_examples, min_accuracy); });
}
