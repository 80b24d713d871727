// Trains a convolutional network on Fashion-MNIST with compile and fit: the Keras way.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "examples/common/example_options.h"
#include "examples/common/training_record.h"
#include "tutti/model/callbacks.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

// Counts steps and ends training after --steps of them.
class Recorder final : public Callback {
 public:
  Recorder(TrainingRecord& record, const ExampleOptions& options, std::int64_t num_examples)
      : record_(record), options_(options), num_examples_(num_examples) {}

  void on_train_batch_end(std::int64_t batch, const Logs& logs) override {
    const std::int64_t first = batch * options_.batch_size;
    const std::int64_t rows = std::min(options_.batch_size, num_examples_ - first);
    // The log's loss is the mean of the epoch so far; the record keeps each step's own.
    if (batch == 0) sum_ = 0.0;
    const double sum = logs.at("loss") * static_cast<double>(first + rows);
    record_.step(static_cast<float>((sum - sum_) / static_cast<double>(rows)), rows);
    sum_ = sum;
    if (options_.steps > 0 && record_.steps() >= options_.steps) model().stop_training();
  }

 private:
  TrainingRecord& record_;
  const ExampleOptions& options_;
  std::int64_t num_examples_;
  double sum_ = 0.0;  // of the losses of the epoch's examples
};

FitOptions fit_options(const ExampleOptions& options, TrainingRecord& record, const Dataset& data,
                       const Dataset& test) {
  FitOptions fit{.epochs = options.epochs, .validation_data = test};
  fit.callbacks.push_back(Recorder(record, options, data.cardinality().value()));
  if (!options.log_dir.empty()) {
    fit.callbacks.push_back(JsonLog(options.log_dir));
    fit.callbacks.push_back(TensorBoard(options.log_dir));
  }
  return fit;
}

int train(const ExampleOptions& options, double min_accuracy) {
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  print_setup(options, *strategy);
  const Dataset data = load_mnist(options.data_dir, Split::kTrain);
  const Dataset test = load_mnist(options.data_dir, Split::kTest).batch(options.batch_size);

  auto scope = strategy->scope();
  Sequential model(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(),
                   Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(), Flatten(),
                   Dense(64, {.activation = "relu"}), Dense(10));
  model.compile(
      {.optimizer = "adam", .loss = "sparse_categorical_crossentropy", .metrics = {"accuracy"}});
  std::printf("%s", model.summary().c_str());

  TrainingRecord record;
  FitOptions fit = fit_options(options, record, data, test);
  const std::string saved = options.checkpoint_dir + "/checkpoint.safetensors";
  if (options.resume) {
    model.checkpoint().restore(saved);
    fit.initial_epoch = model.epochs_trained();
  }
  model.fit(data.shuffle(60'000, options.seed).batch(options.batch_size), fit);
  if (!options.checkpoint_dir.empty()) model.checkpoint().save(saved, record.steps());

  const Logs result = model.evaluate(test);
  record.set_accuracy(result.at("accuracy"));
  record.write(options, *strategy, model.variables(), model.optimizer().state_variables());
  std::printf("result     test loss %.4f, test accuracy %.4f (%.0f examples/s)\n",
              result.at("loss"), result.at("accuracy"), record.examples_per_second());
  if (result.at("accuracy") >= min_accuracy) return 0;
  std::fprintf(stderr, "error: expected a test accuracy of at least %.4f\n", min_accuracy);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  double min_accuracy = 0.0;
  const int code = parse_options(
      argc, argv, "Trains on Fashion-MNIST with compile and fit", options, [&](Flags& flags) {
        flags.add("--min-accuracy", min_accuracy, "fails below this test accuracy");
      });
  return code >= 0 ? code : run_example([&] { return train(options, min_accuracy); });
}
