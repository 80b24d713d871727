// Times the training steps of train_step with libtorch: in one process, or with tutti/libtorch.h in
// several processes under `tutti run`.
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "benchmarks/train_step/train_step_report.h"
#include "tutti/communicator.h"
#include "tutti/libtorch.h"

namespace {

namespace nn = torch::nn;
using tutti::benchmarks::Report;
using tutti::benchmarks::RunOptions;

struct Cifar10CnnImpl : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(3, 64, 5).padding(2)};
  nn::Conv2d conv2{nn::Conv2dOptions(64, 64, 5).padding(2)};
  // torch divides alpha by the window size, 9.
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

nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

struct ResidualBlockImpl : nn::Module {
  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  nn::Sequential shortcut;  // empty if it is the identity

  ResidualBlockImpl(std::int64_t channels, std::int64_t filters, std::int64_t stride)
      : conv1(convolution(channels, filters, 3, stride)),
        conv2(convolution(filters, filters, 3, 1)),
        norm1(filters),
        norm2(filters) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    if (stride == 1 && channels == filters) return;
    shortcut->push_back(convolution(channels, filters, 1, stride));
    shortcut->push_back(nn::BatchNorm2d(filters));
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
};
TORCH_MODULE(ResidualBlock);

nn::Sequential make_resnet20() {
  nn::Sequential layers(convolution(3, 16, 3, 1), nn::BatchNorm2d(16), nn::ReLU());
  std::int64_t channels = 16;
  for (const std::int64_t filters : {16, 32, 64}) {
    for (int block = 0; block < 3; ++block) {
      layers->push_back(ResidualBlock(channels, filters, channels == filters ? 1 : 2));
      channels = filters;
    }
  }
  layers->push_back(nn::AdaptiveAvgPool2d(1));
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(64, 10));
  return layers;
}

struct Network {
  nn::Sequential layers;
  std::vector<std::int64_t> example;
};

Network make_network(const std::string& model) {
  if (model == "cifar10_cnn") return {nn::Sequential(Cifar10Cnn()), {3, 24, 24}};
  if (model == "resnet20") return {make_resnet20(), {3, 32, 32}};
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
  throw std::invalid_argument(
      "--model: expected cifar10_cnn, resnet20, small_cnn, mlp or tiny with libtorch, got " +
      model);
}

int run(RunOptions options, std::int64_t threads, const std::string& layout) {
  options.check();
  const auto ranks = tutti::communicator_from_environment();
  if (options.replicas != 1)
    throw std::invalid_argument("--replicas: expected 1, got " + std::to_string(options.replicas) +
                                "; use tutti run -n");
  options.replicas = ranks->size();
  torch::set_num_threads(static_cast<int>(threads));
  torch::manual_seed(1);
  Network network = make_network(options.model);
  const std::int64_t rows = options.batch_size / options.replicas;
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), network.example.begin(), network.example.end());
  torch::Tensor x = torch::randn(shape);
  const torch::Tensor y = torch::arange(rows).mul(7).remainder(10);
  if (layout == "channels_last" && x.dim() == 4) {
    // Uses clone(), because contiguous() keeps the strides of a dimension of size 1, and
    // convolutions would then assume the other layout.
    x = x.clone(torch::MemoryFormat::ChannelsLast);
    for (torch::Tensor& weight : network.layers->parameters()) {
      if (weight.dim() == 4) {
        weight.set_data(weight.detach().clone(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  std::optional<tutti::torch::DistributedDataParallel<nn::Sequential>> parallel;
  if (options.replicas > 1) {
    parallel.emplace(network.layers, ranks);
    // all processes must run the same number of steps
    options.seconds = std::numeric_limits<double>::infinity();
  }
  torch::optim::SGD optimizer(network.layers->parameters(), 1e-3);
  torch::Tensor loss;

  Report report;
  report.program = parallel ? "libtorch with tutti" : "libtorch";
  report.variant = layout;
  report.threads = threads;
  for (const torch::Tensor& weight : network.layers->parameters()) {
    report.parameters += weight.numel();
  }
  tutti::benchmarks::measure(
      options,
      [&] {
        network.layers->zero_grad(/*set_to_none=*/true);
        const torch::Tensor outputs = parallel ? (*parallel)(x) : network.layers->forward(x);
        loss = nn::functional::cross_entropy(outputs, y);
        loss.backward();
        optimizer.step();
      },
      report);
  report.loss = loss.item<double>();
  if (ranks->rank() == 0) tutti::benchmarks::print(options, report);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  RunOptions options;
  std::int64_t threads = 1;
  std::string layout = "default";
  tutti::Flags flags("Times training steps of libtorch");
  options.add_to(flags);
  flags.add("--threads", threads, "threads per step; set OMP_NUM_THREADS to the same number");
  flags.add_choice("--layout", layout, {"default", "channels_last"}, "memory order of images");
  const int code = flags.parse(argc, argv);
  if (code >= 0) return code;
  try {
    return run(options, threads, layout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
