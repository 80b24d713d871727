// Trains a libtorch classifier in all processes that a launcher starts. Loss values equal those of
// one process.
// SPDX-License-Identifier: Apache-2.0
//
//     libtorch_train                        one process
//     tutti run -n 2 -- libtorch_train      two processes, each with half of every batch
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "tutti/communicator.h"
#include "tutti/libtorch.h"

constexpr int kExamples = 1024, kFeatures = 20, kClasses = 4, kGlobalBatch = 64, kEpochs = 8;

// Points around the corners of a square in two of the features; the other features are noise.
struct Points : torch::data::datasets::Dataset<Points> {
  torch::Tensor labels = torch::arange(kExamples) % kClasses;
  torch::Tensor inputs = torch::randn({kExamples, kFeatures}) * 0.5;

  Points() {
    inputs.select(1, 0) += labels % 2 * 2 - 1;
    inputs.select(1, 1) += labels.div(2, "floor") * 2 - 1;
  }
  torch::data::Example<> get(size_t i) override {
    const auto row = static_cast<std::int64_t>(i);
    return {inputs[row], labels[row]};
  }
  torch::optional<size_t> size() const override { return kExamples; }
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden{kFeatures, 32}, output{32, kClasses};
  NetImpl() {
    register_module("hidden", hidden);
    register_module("output", output);
  }
  torch::Tensor forward(const torch::Tensor& x) { return output(torch::relu(hidden(x))); }
};
TORCH_MODULE(Net);

// Returns a number that is equal on ranks whose weights have equal bits.
double fingerprint(const torch::nn::Module& module) {
  double sum = 0;
  for (const auto& weight : module.parameters()) {
    const auto bits = weight.detach().view(torch::kInt32).to(torch::kFloat64).flatten();
    sum += (bits * torch::arange(1, bits.numel() + 1)).remainder(1e9).sum().item<double>();
  }
  return sum;
}

void train() {
  const auto ranks = tutti::communicator_from_environment();
  torch::manual_seed(7);
  auto points = Points().map(torch::data::transforms::Stack<>());
  auto batches = torch::data::make_data_loader(std::move(points),
                                               tutti::torch::DistributedSampler(kExamples, *ranks),
                                               static_cast<size_t>(kGlobalBatch / ranks->size()));

  tutti::torch::DistributedDataParallel model(Net(), ranks);
  tutti::torch::ShardedOptimizer<torch::optim::Adam> optimizer(model->parameters(), ranks,
                                                               torch::optim::AdamOptions(1e-2));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    torch::Tensor sum = torch::zeros({});
    for (const auto& batch : *batches) {
      optimizer.zero_grad();
      torch::Tensor loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      loss.backward();  // gradients become the mean over ranks
      optimizer.step();
      sum += loss.detach();
    }
    ranks->all_reduce(tutti::ReduceOp::kMean, tutti::torch::elements(sum));
    if (ranks->rank() == 0) {
      std::printf("epoch %d loss %.5f\n", epoch, sum.item<double>() * kGlobalBatch / kExamples);
    }
  }
  std::printf("rank %d of %d: weights %.0f\n", ranks->rank(), ranks->size(),
              fingerprint(*model.module()));
}

int main() try { train(); } catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch_train: %s\n", error.what());
  return 1;
}
