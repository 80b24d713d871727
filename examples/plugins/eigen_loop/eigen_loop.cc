// Classifier in plain Eigen, trained by threads or by processes. tutti only sums the gradients.
// SPDX-License-Identifier: Apache-2.0
//
//     eigen_loop --threads 2                                threads of this process
//     eigen_loop --rank R --world N --store FOLDER          one of N processes
//     [--algorithm ring] [--plugin lib.so] [--steps 100]
//
// Each rank has its part of the global batch. Gradients are sums over examples, divided by the
// global batch size after the all-reduce, so steps do not depend on the number of ranks, except for
// rounding.
#include <Eigen/Dense>
#include <cstdio>
#include <exception>
#include <future>
#include <map>
#include <random>
#include <string>

#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/registry.h"

using Eigen::MatrixXf;
using Eigen::VectorXf;

constexpr int kFeatures = 20, kHidden = 32, kClasses = 4, kGlobalBatch = 64;

// Batch whose examples are points near the corners of a square in two of the features; the other
// features are noise.
struct Batch {
  MatrixXf inputs{kFeatures, kGlobalBatch};  // one example per column
  std::vector<int> labels = std::vector<int>(kGlobalBatch);

  explicit Batch(int step) {
    std::mt19937 random(static_cast<unsigned>(step));
    std::normal_distribution<float> noise(0.f, 0.5f);
    for (int i = 0; i < kGlobalBatch; ++i) {
      labels[static_cast<std::size_t>(i)] = static_cast<int>(random() % kClasses);
      const int label = labels[static_cast<std::size_t>(i)];
      for (int f = 0; f < kFeatures; ++f) inputs(f, i) = noise(random);
      inputs(0, i) += label % 2 ? 1.f : -1.f;
      inputs(1, i) += label / 2 ? 1.f : -1.f;
    }
  }
};

// All parameters are in one vector, and all gradients in another, so a step needs only one
// all-reduce.
struct Network {
  static constexpr int kSize = kHidden * (kFeatures + 1) + kClasses * (kHidden + 1);
  VectorXf values = VectorXf::Zero(kSize);

  auto hidden() { return Eigen::Map<MatrixXf>(values.data(), kHidden, kFeatures); }
  auto hidden_bias() { return values.segment(kHidden * kFeatures, kHidden); }
  auto output() {
    return Eigen::Map<MatrixXf>(values.data() + kHidden * (kFeatures + 1), kClasses, kHidden);
  }
  auto output_bias() { return values.tail(kClasses); }

  void initialize() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.f, 0.2f);
    for (float& value : values) value = normal(random);
  }

  // Adds the gradients of examples [begin, end) to `sums`. Returns the sum of their losses.
  float backward(const Batch& batch, int begin, int end, Network& sums) {
    const MatrixXf x = batch.inputs.middleCols(begin, end - begin);
    const MatrixXf h = ((hidden() * x).colwise() + hidden_bias()).cwiseMax(0.f);
    MatrixXf p = (output() * h).colwise() + output_bias();
    p = (p.rowwise() - p.colwise().maxCoeff()).array().exp();
    p = p.array().rowwise() / p.colwise().sum().array();
    float loss = 0;
    for (int i = 0; i < p.cols(); ++i) {
      float& right = p(batch.labels[static_cast<std::size_t>(begin + i)], i);
      loss -= std::log(right);
      right -= 1;
    }
    const MatrixXf dh =
        ((output().transpose() * p).array() * (h.array() > 0).cast<float>()).matrix();
    sums.output() += p * h.transpose();
    sums.output_bias() += p.rowwise().sum();
    sums.hidden() += dh * x.transpose();
    sums.hidden_bias() += dh.rowwise().sum();
    return loss;
  }
};

void train(tutti::Communicator& ranks, int steps) {
  Network network;
  if (ranks.rank() == 0) network.initialize();
  ranks.broadcast(std::span(network.values.data(), Network::kSize), 0, {.name = "initial values"});
  const int begin = kGlobalBatch * ranks.rank() / ranks.size();
  const int end = kGlobalBatch * (ranks.rank() + 1) / ranks.size();
  for (int step = 0; step < steps; ++step) {
    Network gradients;
    float loss = network.backward(Batch(step), begin, end, gradients);
    const tutti::Elements sums[] = {std::span(gradients.values.data(), Network::kSize),
                                    std::span(&loss, 1)};
    ranks.all_reduce(tutti::ReduceOp::kSum, sums, {.name = "gradients"});
    network.values -= 0.3f / kGlobalBatch * gradients.values;
    if (ranks.rank() == 0 && (step % 10 == 0 || step + 1 == steps)) {
      std::printf("step %d loss %.5f\n", step, loss / kGlobalBatch);
    }
  }
}

int run(std::map<std::string, std::string> flags) {
  const int steps = flags.contains("--steps") ? std::stoi(flags["--steps"]) : 100;
  tutti::CommunicatorOptions options;
  if (flags.contains("--algorithm")) options.algorithm = flags["--algorithm"];
  if (flags.contains("--plugin")) {
    options.algorithm = tutti::load_cross_device_ops_plugin(flags["--plugin"]);
  }
  if (flags.contains("--rank")) {
    const int rank = std::stoi(flags["--rank"]), world = std::stoi(flags["--world"]);
    tutti::Group group{world, rank, {tutti::Device{}}};
    const auto store = std::make_shared<tutti::FileKeyValueStore>(flags["--store"]);
    group.store = store;
    group.transport =
        tutti::connect_ranks(rank, world, *store, {.way = tutti::ConnectOptions::Way::kTcp})
            .transport;
    train(*tutti::make_communicator(group, options), steps);
    return 0;
  }
  const int threads = flags.contains("--threads") ? std::stoi(flags["--threads"]) : 2;
  std::vector<std::future<void>> workers;
  for (auto& communicator : tutti::in_process_communicators(threads, options)) {
    workers.push_back(std::async(
        std::launch::async, [ranks = std::move(communicator), steps] { train(*ranks, steps); }));
  }
  for (auto& worker : workers) worker.get();
  return 0;
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  return run(flags);
} catch (const std::exception& error) {
  std::fprintf(stderr, "eigen_loop: %s\n", error.what());
  return 1;
}
