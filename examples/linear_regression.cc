// Fits a line with a custom training loop: the smallest complete program.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "examples/common/metrics_file.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

constexpr float kSlope = 3.0f;
constexpr float kIntercept = 2.0f;

int train(const ExampleOptions& options) {
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  if (const auto code = strategy->serve()) return *code;  // tasks that do not train return here
  print_setup(options, *strategy);

  Tensor x = random_uniform({1024, 1}, {.seed = 7}, -1.0, 1.0);
  Tensor y = kSlope * x + kIntercept;
  DistributedDataset batches = strategy->distribute_dataset(
      Dataset::from_tensor_slices(x, y).shuffle(1024, options.seed).batch(options.batch_size));

  auto scope = strategy->scope();
  Variable slope(Tensor::zeros({1, 1}), {.name = "slope"});
  Variable intercept(Tensor::zeros({1}), {.name = "intercept"});
  const std::vector<Variable> weights{slope, intercept};
  Sgd optimizer(weights, 0.1);

  auto train_step = [&](const Batch& batch) {
    GradientTape tape;
    Tensor predictions = dense(batch.features(), slope, intercept);
    Tensor per_example = losses::mean_squared_error(batch.labels(), predictions);
    Tensor loss = compute_average_loss(per_example, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };

  TrainingSession session(*strategy, weights, optimizer, batches, session_options(options));
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : batches) {
        Tensor loss = strategy->reduce(ReduceOp::kSum, strategy->run(train_step, batch));
        if (!session.step(loss.item(), batch[0].global_rows())) break;
      }
      const float error =
          std::abs(slope.value().item() - kSlope) + std::abs(intercept.value().item() - kIntercept);
      session.end_epoch("closeness", 1.0 - error);
    }
  });
  if (strategy->is_chief()) {
    std::printf("line       y = %.4f x + %.4f\n", slope.value().item(), intercept.value().item());
  }
  return finish(session, options, *strategy, weights, optimizer, 0.99);
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  options.epochs = 20;
  const int code = parse_options(argc, argv, "Fits a line", options,
                                 [](Flags& flags) { flags.remove({"--data-dir"}); });
  return code >= 0 ? code : run_example([&] { return train(options); });
}
