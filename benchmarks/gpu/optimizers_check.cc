// Compares several steps of each optimizer on a device with those on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/device_check.h"
#include "tutti/core/text.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::device_check {
namespace {

constexpr int kSteps = 4;
const Shape kShapes[] = {{1003}, {17, 33}, {3, 3, 16, 24}, {1}};

struct NamedSpec {
  std::string name;
  OptimizerSpec spec;
};

/// Returns each optimizer with its default options, then variants with options that several
/// optimizers share.
std::vector<NamedSpec> specs() {
  std::vector<NamedSpec> all;
  for (const std::string& name : optimizer_names()) all.push_back({name, name});
  all.push_back({"sgd with momentum", SgdOptions{.learning_rate = 0.1, .momentum = 0.9}});
  all.push_back(
      {"sgd with nesterov", SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}});
  all.push_back(
      {"adam with clipping, decay and averages", AdamOptions{.weight_decay = 0.01,
                                                             .clipping = {.global_clipnorm = 1.0},
                                                             .ema = EmaOptions{.momentum = 0.9}}});
  all.push_back({"sgd with a dynamic loss scale", with_dynamic_loss_scale("sgd")});
  return all;
}

Tensor random(const Shape& shape, std::uint64_t step, std::uint64_t variable) {
  return random_normal(shape,
                       {.seed = 3, .purpose = kUserPurpose, .a = step, .b = variable, .c = 0});
}

std::vector<Gradient> gradients_of(std::uint64_t step, const Optimizer& optimizer,
                                   const Device& device) {
  std::vector<Gradient> gradients;
  for (std::uint64_t i = 0; i < std::size(kShapes); ++i) {
    const float scale = static_cast<float>(optimizer.loss_scale());
    const Tensor dense = random(kShapes[i], step, i) * scale;
    if (i == 1 && step % 2 == 1) {  // a sparse gradient of rows 4, 2 and 4
      const std::vector<std::int64_t> rows = {4, 2, 4};
      gradients.push_back(IndexedSlices{dense.detached_rows(0, 3).to(device),
                                        Tensor::from(Shape{3}, rows).to(device), kShapes[i]});
    } else {
      gradients.push_back(dense.to(device));
    }
  }
  return gradients;
}

/// Returns the weights, then the optimizer's state, copied to the CPU.
std::vector<Tensor> train(const OptimizerSpec& spec, const Device& device) {
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  std::vector<Variable> variables;
  for (std::uint64_t i = 0; i < std::size(kShapes); ++i) {
    variables.emplace_back(random(kShapes[i], 100, i), VariableOptions{.name = concat("w", i)});
  }
  const std::unique_ptr<Optimizer> optimizer = spec.make(variables);
  for (int step = 0; step < kSteps; ++step) {
    strategy.run([&] {
      optimizer->apply_gradients(
          gradients_of(static_cast<std::uint64_t>(step), *optimizer, device));
    });
  }
  std::vector<Tensor> results;
  for (const Variable& variable : variables) results.push_back(variable.value().to(Device{}));
  for (const Variable& variable : optimizer->state_variables()) {
    results.push_back(variable.value().to(Device{}));
  }
  return results;
}

std::string compare(const NamedSpec& each, const CheckOptions& options) {
  const std::vector<Tensor> expected = train(each.spec, Device{});
  std::vector<Tensor> actual = train(each.spec, options.device);
  if (each.name == options.spoil) actual[0] = spoiled(actual[0]);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string found = difference(actual[i], expected[i], 2e-5);
    if (!found.empty()) return concat("variable ", i, ": ", found);
  }
  return "";
}

}  // namespace

Findings check_optimizers(const CheckOptions& options) {
  Findings findings{.check = "optimizers"};
  for (const NamedSpec& each : specs()) {
    if (!options.only.empty() && each.name != options.only) continue;
    try {
      findings.add(each.name, compare(each, options));
    } catch (const Error& error) {
      findings.add(each.name, error.what());
    }
  }
  findings.detail = concat(kSteps, " steps each");
  return findings;
}

}  // namespace tutti::device_check
