// Compares the gradients that a tape computes on a device with its gradients on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/device_check.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/text.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::device_check {
namespace {

/// Returns the program's value and the gradients of its sources, copied to the CPU.
std::vector<Tensor> value_and_gradients(const Program& program, const Device& device) {
  std::vector<Tensor> inputs, sources;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    inputs.push_back(program.inputs[i].to(device));
    if (program.is_source[i]) sources.push_back(inputs.back());
  }
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  const Tensor y = program.function(inputs);
  // The square gives each element a different gradient.
  const std::vector<Gradient> gradients = tape.gradient(square(y) + y, sources);
  std::vector<Tensor> results = {y.to(Device{})};
  for (const Gradient& gradient : gradients) {
    if (!gradient.is_none()) results.push_back(gradient.to_dense().to(Device{}));
  }
  return results;
}

std::string compare(const Program& program, const CheckOptions& options) {
  const std::vector<Tensor> expected = value_and_gradients(program, Device{});
  std::vector<Tensor> actual = value_and_gradients(program, options.device);
  if (actual.size() != expected.size()) {
    return concat("expected ", expected.size() - 1, " gradients, got ", actual.size() - 1);
  }
  if (program.name.starts_with(options.spoil + " ")) actual.back() = spoiled(actual.back());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // A gradient accumulates the rounding errors of several operations.
    const double tolerance = 5.0 * tolerance_of(std::array{expected[i].dtype()});
    const std::string found = difference(actual[i], expected[i], tolerance);
    if (!found.empty()) return i == 0 ? found : concat("gradient ", i - 1, ": ", found);
  }
  return "";
}

}  // namespace

Findings check_gradients(const CheckOptions& options) {
  Findings findings{.check = "gradients"};
  for (const Program& program : gradient_programs(DType::kFloat32)) {
    if (!options.only.empty() && !program.name.starts_with(options.only + " ")) continue;
    try {
      findings.add(program.name, compare(program, options));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnimplemented) {
        findings.without_kernel.push_back(program.name + ": " + error.what());
      } else {
        findings.add(program.name, error.what());
      }
    }
  }
  findings.detail = concat(findings.num_compared, " programs in float32");
  return findings;
}

}  // namespace tutti::device_check
