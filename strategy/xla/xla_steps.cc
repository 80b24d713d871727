// Implements replica steps as XLA programs.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/xla/xla_steps.h"

#include <span>
#include <vector>

#include "tensor/step_hooks.h"
#include "tensor/xla/step_trace.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/logging.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::internal {
namespace {

/// Reducer that records the sums over replicas in its replica's trace. Never waits, because nothing
/// is executed.
class TracedReducer final : public GradientReducer {
 public:
  explicit TracedReducer(StepTracer& tracer) : tracer_(tracer) {}

  void begin(std::span<const Variable> variables) override {
    gradients_.assign(variables.size(), Gradient());
  }
  void ready(std::size_t index, const Gradient& gradient) override {
    const GradientTape::StopRecording stop;
    // Sparse gradients are made dense, because their rows, and possibly the number of rows, differ
    // between replicas.
    gradients_.at(index) = gradient.is_none() ? gradient : Gradient(gradient.to_dense());
  }
  std::vector<Gradient> finish() override {
    const GradientTape::StopRecording stop;
    std::vector<Tensor> values;
    for (const Gradient& gradient : gradients_) {
      if (!gradient.is_none()) values.push_back(gradient.dense());
    }
    if (values.empty()) return std::move(gradients_);
    const std::vector<Tensor> sums = tracer_.all_reduce(ReduceOp::kSum, values, SourceLocation());
    std::size_t next = 0;
    for (Gradient& gradient : gradients_) {
      if (!gradient.is_none()) gradient = sums[next++];
    }
    return std::move(gradients_);
  }
  void updates_done() override {}

 private:
  StepTracer& tracer_;
  std::vector<Gradient> gradients_;  // indexed by variable; each is dense or none
};

std::vector<int> numbers_of(const std::vector<Device>& devices) {
  const int count = PjrtClient::get().num_devices();
  std::vector<int> numbers;
  for (const Device& device : devices) {
    if (device.index >= count) {
      fail(ErrorCode::kUnavailable, device,
           " is unavailable: expected one of the XLA devices xla:0 to xla:", count - 1, " (",
           xla_devices().platform, ")",
           xla_devices().platform == "cpu" ? "; set TUTTI_XLA_CPU_DEVICES to get more" : "");
    }
    numbers.push_back(device.index);
  }
  return numbers;
}

}  // namespace

struct XlaSteps::Impl {
  explicit Impl(std::vector<int> numbers) : devices(std::move(numbers)), programs(devices) {}
  const std::vector<int> devices;
  StepPrograms programs;
};

XlaSteps::XlaSteps(const std::vector<Device>& devices)
    : impl_(std::make_unique<Impl>(numbers_of(devices))) {
  const XlaDevices& here = xla_devices();
  log_info(concat("XLA: replicas compute on ", join(devices), "; XLA devices: ", here.count, " (",
                  here.platform, "); plugin ", here.plugin, ", PJRT ", here.version));
}

XlaSteps::~XlaSteps() = default;

void XlaSteps::run(const std::function<void(const NoteReplica&)>& run_replicas) {
  if (StepTracer::current()) {
    fail(ErrorCode::kUnimplemented,
         "Strategy::run: called in merge_call() of a step that XLA compiles; expected a call "
         "outside run()");
  }
  const auto num_replicas = static_cast<int>(impl_->devices.size());
  std::vector<std::unique_ptr<Trace>> traces;
  for (int r = 0; r < num_replicas; ++r) {
    traces.push_back(
        std::make_unique<Trace>(r, num_replicas, impl_->devices[static_cast<std::size_t>(r)]));
  }
  run_replicas([&](int replica, const std::function<void()>& fn) {
    Trace& trace = *traces[static_cast<std::size_t>(replica)];
    const StepTracerScope tracing(trace);
    TracedReducer reducer(trace);
    const GradientReducerScope reducing(&reducer);
    fn();
  });
  impl_->programs.run(traces);
}

int XlaSteps::num_compiled() const { return impl_->programs.num_compiled(); }
const std::string& XlaSteps::last_program() const { return impl_->programs.last_text(); }

}  // namespace tutti::internal
