// Runs programs on cpu:0 and records all operation calls.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/recorded_calls.h"

#include "tests/autograd/gradient_cases.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::device_check {
namespace {

using gradient_check::Case;

class Recorder final : public OpObserver {
 public:
  Recorder(const std::string& only, std::vector<RecordedCall>& calls)
      : only_(only.empty() ? "" : "," + only + ","), calls_(calls) {}
  void on_op(const OpCall& call, std::span<const Tensor> outputs) override {
    if (!only_.empty() && only_.find(concat(",", to_string(call.op), ",")) == std::string::npos)
      return;
    calls_.push_back({call, {outputs.begin(), outputs.end()}, origin});
  }
  std::string origin;

 private:
  const std::string only_;
  std::vector<RecordedCall>& calls_;
  ObserverScope scope_{*this};
};

/// Runs the program. If it is differentiable, also computes its gradient.
void run(const Program& program) {
  GradientTape tape;
  std::vector<Tensor> sources;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.is_source[i]) sources.push_back(program.inputs[i]);
  }
  for (const Tensor& source : sources) tape.watch(source);
  const Tensor y = program.function(program.inputs);
  if (!sources.empty() && is_floating(y.dtype())) tape.gradient(y, sources);
}

/// Records the operations that programs call. Ends each program before the first operation that the
/// CPU does not support for the input's type, because such an operation has no reference.
void record(const std::vector<Program>& programs, Recorder& recorder) {
  for (const Program& program : programs) {
    recorder.origin = program.name;
    try {
      run(program);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnimplemented && error.code() != ErrorCode::kInvalidArgument)
        throw;
    }
  }
}

}  // namespace

std::vector<Program> gradient_programs(DType dtype) {
  std::vector<Program> programs;
  for (const testing::OpFamily& family : testing::op_families()) {
    for (const Case& c : gradient_check::cases_of(family)) {
      Program program{.name = c.name, .function = [c](const auto& inputs) { return c(inputs)[0]; }};
      for (const Tensor& input : c.call.inputs) {
        const bool floating = is_floating(input.dtype());
        program.inputs.push_back(floating ? cast(input, dtype) : input);
        program.is_source.push_back(floating);
      }
      programs.push_back(std::move(program));
    }
  }
  return programs;
}

std::vector<RecordedCall> record_calls(CallSize size, const std::string& only) {
  std::vector<RecordedCall> calls;
  for (const DType dtype : kAllDTypes) {
    std::vector<std::vector<Program>> lists;  // created before recording begins
    if (size != CallSize::kWide) {
      if (is_floating(dtype)) lists.push_back(gradient_programs(dtype));
      lists.push_back(plain_programs(dtype));
    }
    if (size != CallSize::kSmall && is_floating(dtype)) lists.push_back(wide_programs(dtype));
    Recorder recorder(only, calls);
    for (const auto& programs : lists) record(programs, recorder);
  }
  return calls;
}

}  // namespace tutti::device_check
