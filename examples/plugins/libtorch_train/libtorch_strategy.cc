// A libtorch classifier under a strategy, with one replica per device, in one or several processes.
// SPDX-License-Identifier: Apache-2.0
//
//     libtorch_strategy                     two replicas in this process
//     TUTTI_STRATEGY=multi_worker_mirrored TUTTI_DEVICES=cpu:0 tutti run -n 2 -- libtorch_strategy
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "tutti/libtorch.h"
#include "tutti/tutti.h"

constexpr int kExamples = 1024, kFeatures = 20, kClasses = 4, kGlobalBatch = 64, kEpochs = 8;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden{kFeatures, 32}, output{32, kClasses};
  NetImpl() {
    register_module("hidden", hidden);
    register_module("output", output);
  }
  torch::Tensor forward(const torch::Tensor& x) { return output(torch::relu(hidden(x))); }
};
TORCH_MODULE(Net);

// Points around the corners of a square in two of the features; the other features are noise.
tutti::Dataset points() {
  const torch::Tensor labels = torch::arange(kExamples) % kClasses;
  torch::Tensor inputs = torch::randn({kExamples, kFeatures}) * 0.5;
  inputs.select(1, 0) += labels % 2 * 2 - 1;
  inputs.select(1, 1) += labels.div(2, "floor") * 2 - 1;
  return tutti::Dataset::from_tensor_slices(tutti::torch::to_tutti(inputs),
                                            tutti::torch::to_tutti(labels))
      .shuffle(kExamples, /*seed=*/1)
      .batch(kGlobalBatch);
}

void train(tutti::Strategy& strategy) {
  torch::manual_seed(7);
  tutti::DistributedDataset batches = strategy.distribute_dataset(points());
  tutti::torch::Replicated model(strategy, [] { return Net(); });
  tutti::torch::ReplicatedOptimizer<torch::optim::Adam> optimizer(model,
                                                                  torch::optim::AdamOptions(1e-2));

  const auto step = [&](const tutti::Batch& batch) {  // called by each replica with its share
    const torch::Tensor x = tutti::torch::to_torch(batch.features());
    const torch::Tensor y = tutti::torch::to_torch(batch.labels());
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model(x), y);
    loss.backward();
    optimizer.step();  // gradients become the mean over replicas
    return tutti::torch::to_tutti(loss);
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double sum = 0;
    for (const auto& batch : batches) {
      sum += strategy.reduce(tutti::ReduceOp::kMean, strategy.run(step, batch)).item();
    }
    if (strategy.is_chief()) {
      std::printf("epoch %d loss %.5f\n", epoch, sum * kGlobalBatch / kExamples);
    }
  }
  if (strategy.is_chief()) torch::save(model.module(), "net.pt");  // replicas have equal weights
}

int main() try {
  torch::set_num_threads(1);  // per replica
  train(*tutti::make_strategy(tutti::strategy_spec_from_environment({.devices = "cpu:0-1"})));
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch_strategy: %s\n", error.what());
  return 1;
}
