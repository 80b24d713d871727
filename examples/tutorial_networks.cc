// Trains the networks of Keras's MNIST-family tutorials on Fashion-MNIST. docs/tutorials.md lists
// their accuracies.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <map>

#include "examples/common/fit_recorder.h"
#include "tutti/readers.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct Tutorial {
  Sequential (*make)() = nullptr;
  std::string optimizer = "adam";
  std::int64_t batch_size = 64;
  std::int64_t epochs = 1;
  std::int64_t examples = 60'000;  // number of examples, from the start of the data set
  double (*rate_of_epoch)(std::int64_t epoch, double rate) = nullptr;
};

Input image() { return {{28, 28, 1}}; }

Sequential dense_network() {
  return Sequential(image(), Flatten(), Dense(128, {.activation = "relu"}), Dense(10));
}
Sequential dropout_network() {
  return Sequential(image(), Flatten(), Dense(128, {.activation = "relu"}), Dropout(0.2),
                    Dense(10));
}
Sequential simple_convnet() {
  return Sequential(image(), Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(),
                    Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(), Flatten(), Dropout(0.5),
                    Dense(10, {.activation = "softmax"}));
}
Sequential one_convolution() {
  return Sequential(image(), Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(), Flatten(),
                    Dense(64, {.activation = "relu"}), Dense(10));
}
Sequential two_convolutions() {
  return Sequential(image(), Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(),
                    Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(), Flatten(),
                    Dense(64, {.activation = "relu"}), Dense(10));
}
Sequential recurrent_network() {
  return Sequential(image(), Reshape({28, 28}), LSTM(64), BatchNormalization(), Dense(10));
}

double falling_rate(std::int64_t epoch, double) {
  return epoch < 3 ? 1e-3 : epoch < 7 ? 1e-4 : 1e-5;
}

// Returns the networks, keyed by tutorial name. tests/parity/tutorials.py has the Keras versions.
const std::map<std::string, Tutorial>& tutorials() {
  static const std::map<std::string, Tutorial> table = {
      {"basic_classification", {&dense_network, "adam", 32, 10}},
      {"quickstart", {&dropout_network, "adam", 32, 5}},
      {"simple_convnet", {&simple_convnet, "adam", 128, 15, 54'000}},
      {"distributed_keras", {&one_convolution, "adam", 64, 12, 60'000, &falling_rate}},
      {"custom_training", {&two_convolutions, "adam", 64, 10}},
      {"working_with_rnns", {&recurrent_network, "sgd", 64, 1}},
  };
  return table;
}

int train(const Tutorial& tutorial, const ExampleOptions& options, double min_accuracy) {
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  if (const auto code = strategy->serve()) return *code;  // tasks that do not train return here
  print_setup(options, *strategy);
  const Dataset data = load_mnist(options.data_dir, Split::kTrain).take(tutorial.examples);
  const Dataset test = load_mnist(options.data_dir, Split::kTest).batch(1'000);

  auto scope = strategy->scope();
  Sequential model = tutorial.make();
  model.compile({.optimizer = tutorial.optimizer,
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  TrainingRecord record = make_record(options);
  FitOptions fit = fit_options(options, record, tutorial.examples);
  if (tutorial.rate_of_epoch)
    fit.callbacks.push_back(LearningRateScheduler(tutorial.rate_of_epoch));
  model.fit(data.shuffle(60'000, options.seed).batch(options.batch_size), fit);

  const Logs result = model.evaluate(test);
  write_metrics(options, record, result.at("accuracy"), *strategy, model.variables(),
                model.optimizer().state_variables());
  return report(*strategy, result, record, min_accuracy);
}

// Parses the flags into `options`. It is called twice, because the defaults depend on the tutorial,
// which the first call determines.
int parse(int argc, char** argv, ExampleOptions& options, std::string& network,
          double& min_accuracy) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : tutorials()) names.push_back(name);
  return parse_options(
      argc, argv, "Trains a tutorial's network on Fashion-MNIST", options, [&](Flags& flags) {
        flags.remove({"--checkpoint-dir", "--resume"});
        flags.add_choice("--network", network, names,
                         "tutorial whose network to train; sets the default batch size and epochs");
        flags.add("--min-accuracy", min_accuracy, "fails below this test accuracy");
      });
}

}  // namespace

int main(int argc, char** argv) {
  std::string network = "basic_classification";
  double min_accuracy = 0.0;
  ExampleOptions options;
  if (const int code = parse(argc, argv, options, network, min_accuracy); code >= 0) return code;
  const Tutorial& tutorial = tutorials().at(network);
  options = ExampleOptions{};
  options.batch_size = tutorial.batch_size;
  options.epochs = tutorial.epochs;
  if (const int code = parse(argc, argv, options, network, min_accuracy); code >= 0) return code;
  return run_example([&] { return train(tutorial, options, min_accuracy); });
}
