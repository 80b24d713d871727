// The same training steps with libtorch's C++ front end (all models but resnet20).
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "benchmarks/train_step/report.h"

namespace tutti::benchmarks {
namespace {

namespace nn = torch::nn;

struct Cifar10CnnImpl : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(3, 64, 5).padding(2)};
  nn::Conv2d conv2{nn::Conv2dOptions(64, 64, 5).padding(2)};
  // torch divides alpha by the number of channels.
  nn::LocalResponseNorm lrn{nn::LocalResponseNormOptions(9).alpha(0.001).beta(0.75).k(1.0)};
  nn::MaxPool2d pool{nn::MaxPool2dOptions(3).stride(2).padding(1)};
  nn::Linear dense1{2304, 384}, dense2{384, 192}, dense3{192, 10};

  Cifar10CnnImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("dense1", dense1);
    register_module("dense2", dense2);
    register_module("dense3", dense3);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = lrn(pool(torch::relu(conv1(x))));
    x = pool(lrn(torch::relu(conv2(x))));
    x = torch::relu(dense1(x.flatten(1)));
    return dense3(torch::relu(dense2(x)));
  }
};
TORCH_MODULE(Cifar10Cnn);

struct Network {
  nn::Sequential layers;
  std::vector<std::int64_t> example;
};

Network make_network(const std::string& model) {
  if (model == "cifar10_cnn") return {nn::Sequential(Cifar10Cnn()), {3, 24, 24}};
  if (model == "small_cnn") {
    return {nn::Sequential(nn::Conv2d(1, 32, 3), nn::ReLU(), nn::MaxPool2d(2),
                           nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                           nn::Linear(1600, 64), nn::ReLU(), nn::Linear(64, 10)),
            {1, 28, 28}};
  }
  if (model == "mlp") {
    return {nn::Sequential(nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 512), nn::ReLU(),
                           nn::Linear(512, 10)),
            {784}};
  }
  if (model == "tiny") return {nn::Sequential(nn::Linear(10, 10)), {10}};
  throw std::invalid_argument("--model " + model + ": expected one of the others; use " +
                              "torch_train_step.py for it");
}

int run(RunOptions options, std::int64_t threads, const std::string& layout) {
  options.check();
  if (options.replicas != 1) throw std::invalid_argument("--replicas: expected 1");
  torch::set_num_threads(static_cast<int>(threads));
  torch::manual_seed(1);
  Network network = make_network(options.model);
  std::vector<std::int64_t> shape = {options.batch_size};
  shape.insert(shape.end(), network.example.begin(), network.example.end());
  torch::Tensor x = torch::randn(shape);
  const torch::Tensor y = torch::arange(options.batch_size).mul(7).remainder(10);
  if (layout == "channels_last" && x.dim() == 4) {
    x = x.contiguous(torch::MemoryFormat::ChannelsLast);
    for (torch::Tensor& weight : network.layers->parameters()) {
      if (weight.dim() == 4) {
        weight.set_data(weight.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  torch::optim::SGD optimizer(network.layers->parameters(), 1e-3);
  torch::Tensor loss;

  Report report;
  report.program = "libtorch";
  report.variant = layout;
  report.threads = threads;
  for (const torch::Tensor& weight : network.layers->parameters()) {
    report.parameters += weight.numel();
  }
  measure(
      options,
      [&] {
        optimizer.zero_grad();
        loss = nn::functional::cross_entropy(network.layers->forward(x), y);
        loss.backward();
        optimizer.step();
      },
      report);
  report.loss = loss.item<double>();
  print(options, report);
  return 0;
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  tutti::benchmarks::RunOptions options;
  std::int64_t threads = 1;
  std::string layout = "default";
  tutti::Flags flags("Times training steps of libtorch");
  options.add_to(flags);
  flags.add("--threads", threads, "threads of a step; set OMP_NUM_THREADS to the same");
  flags.add_choice("--layout", layout, {"default", "channels_last"}, "memory order of images");
  const int code = flags.parse(argc, argv);
  if (code >= 0) return code;
  try {
    return tutti::benchmarks::run(options, threads, layout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
