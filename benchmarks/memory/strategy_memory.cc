// Compares the peak memory of a device during a step with a formula, for each strategy.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: strategy_memory [WIDTH [LAYERS [REPLICAS]]]. Each of the REPLICAS virtual devices has its
// own memory. Prints a table in Markdown. Exits with 1 if the weights differ between strategies
// or a peak differs from its formula by more than a tenth.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/flags.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/tensor_ops.h"

namespace {

using namespace tutti;

struct Problem {
  std::int64_t width = 2048, layers = 7;
  int replicas = 4;
  double parameters() const { return static_cast<double>(width * width * layers); }
  double bytes_of_layer() const { return static_cast<double>(width * width) * sizeof(float); }
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Strategy>(const LocalStrategyOptions&)> make;
  /// Peak in bytes; empty if it is not checked.
  std::function<double(const Problem&)> formula;
};

std::unique_ptr<Strategy> sharded(const LocalStrategyOptions& local, int stage, bool reshard) {
  return std::make_unique<FullyShardedStrategy>(
      FullyShardedOptions{.local = local, .stage = stage, .reshard_after_forward = reshard});
}

/// Returns a formula for the peak memory of each strategy. The weights take P bytes, Adam's slots 2
/// P, a replica's gradients P, and the summed gradients P. A shard takes 1/N of these.
std::vector<Case> cases() {
  const auto all = [](const Problem& p) { return p.parameters() * sizeof(float); };
  const auto part = [all](const Problem& p) { return all(p) / p.replicas; };
  // Bytes of the gradients that are waiting for other replicas. A layer larger than a bucket forms
  // its own bucket.
  const auto bucket = [](const Problem& p) {
    return std::max(p.bytes_of_layer(), 4.0 * (1 << 20));
  };
  return {
      {"central_storage",
       [](const LocalStrategyOptions& local) {
         return std::make_unique<CentralStorageStrategy>(local);
       },
       {}},
      {"mirrored",
       [](const LocalStrategyOptions& local) { return std::make_unique<MirroredStrategy>(local); },
       [=](const Problem& p) { return 5 * all(p); }},
      {"fully_sharded, stage 1",
       [](const LocalStrategyOptions& local) { return sharded(local, 1, true); },
       [=](const Problem& p) { return 3 * all(p) + 3 * part(p); }},
      {"fully_sharded, stage 2",
       [](const LocalStrategyOptions& local) { return sharded(local, 2, true); },
       [=](const Problem& p) { return all(p) + 4 * part(p) + 2 * bucket(p); }},
      {"fully_sharded, stage 3, values kept",
       [](const LocalStrategyOptions& local) { return sharded(local, 3, false); },
       [=](const Problem& p) { return all(p) + 3 * part(p) + bucket(p); }},
      {"fully_sharded, stage 3",
       [](const LocalStrategyOptions& local) { return sharded(local, 3, true); },
       [=](const Problem& p) { return 4 * part(p) + 2 * bucket(p) + p.bytes_of_layer(); }},
  };
}

struct Measured {
  double standing = 0.0, peak = 0.0;  // bytes in use after and during a step; maxima over devices
  std::string hash;
};

Measured measure(const Problem& problem, Strategy& strategy) {
  set_random_seed(1);
  const auto scope = strategy.scope();
  std::vector<Variable> layers;
  for (std::int64_t i = 0; i < problem.layers; ++i) {
    layers.emplace_back(
        random_normal({problem.width, problem.width}, RandomKey{1, kUserPurpose, 0, 0, 0}) * 0.02f,
        VariableOptions{.name = concat("layer_", i)});
  }
  Adam optimizer(layers);
  const auto step = [&] {
    const Device device = ReplicaContext::current().device();
    GradientTape tape;
    Tensor x = Tensor::ones({1, problem.width}, DType::kFloat32, device);
    for (const Variable& layer : layers) x = tanh(matmul(x, layer.value()));
    optimizer.minimize(tape, reduce_sum(square(x)));
  };
  strategy.run(step);
  Measured measured;
  for (const Device& device : strategy.replica_devices()) reset_peak_memory(device);
  strategy.run(step);
  for (const Device& device : strategy.replica_devices()) {
    const DeviceMemory memory = device_memory(device);
    measured.standing = std::max(measured.standing, static_cast<double>(memory.in_use));
    measured.peak = std::max(measured.peak, static_cast<double>(memory.peak));
  }
  measured.hash = hash_variables(layers);
  return measured;
}

int run(const Problem& problem) {
  for (int i = 0; i < problem.replicas; ++i) {
    set_memory_limit({DeviceType::kCpu, i}, kUnlimitedMemory);
  }
  LocalStrategyOptions local;
  for (int i = 0; i < problem.replicas; ++i) local.devices.devices.push_back({DeviceType::kCpu, i});
  std::printf("%.1f million parameters in %lld layers, Adam, %d replicas; MB of a device\n\n",
              problem.parameters() * 1e-6, static_cast<long long>(problem.layers),
              problem.replicas);
  std::printf("| strategy | between steps | peak | formula | weights |\n|---|---|---|---|---|\n");
  std::string first;
  bool is_right = true;
  for (const Case& each : cases()) {
    const Measured measured = measure(problem, *each.make(local));
    if (first.empty()) first = measured.hash;
    const double formula = each.formula ? each.formula(problem) : measured.peak;
    is_right =
        is_right && measured.hash == first && std::abs(measured.peak - formula) <= 0.1 * formula;
    std::printf("| %s | %.0f | %.0f | %.0f | %.8s |\n", each.name.c_str(), measured.standing * 1e-6,
                measured.peak * 1e-6, formula * 1e-6, measured.hash.c_str());
  }
  return is_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Problem problem;
  std::int64_t replicas = problem.replicas;
  Flags flags("Measures the peak memory of a device during a step under each strategy");
  flags.add("WIDTH", problem.width, "rows and columns of a layer's weights");
  flags.add("LAYERS", problem.layers, "layers of the model");
  flags.add("REPLICAS", replicas, "virtual devices, each with its own memory");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  if (problem.width < 1 || problem.layers < 1 || replicas < 1 || replicas > kNumVirtualCpuDevices) {
    std::fprintf(stderr,
                 "strategy_memory: expected WIDTH, LAYERS and REPLICAS >= 1, and REPLICAS <= %d\n",
                 kNumVirtualCpuDevices);
    return 2;
  }
  problem.replicas = static_cast<int>(replicas);
  return run(problem);
}
