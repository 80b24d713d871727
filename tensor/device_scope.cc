// Scopes that place tensors and operations on a device, and a log of placements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_scope.h"

#include <atomic>
#include <iterator>
#include <string>
#include <utility>

#include "tensor/step_hooks.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {

// Device scopes, and the job, replica and task of this process.

namespace {

const DeviceScope*& innermost() {
  thread_local const DeviceScope* scope = nullptr;
  return scope;
}

struct Process {
  Mutex mutex;
  DeviceSpec spec TUTTI_GUARDED_BY(mutex) = {.job = "localhost", .replica = 0, .task = 0};
};

Process& process() {
  static Process one;
  return one;
}

/// Parses a specification; "cpu:2" means "/cpu:2".
DeviceSpec parsed(std::string_view text) {
  if (text.empty() || text.starts_with('/')) return DeviceSpec::parse(text);
  return DeviceSpec::parse("/" + std::string(text));
}

template <class T>
bool differs(const std::optional<T>& named, const std::optional<T>& own) {
  return named && named != own;
}

}  // namespace

DeviceScope::DeviceScope(std::string_view spec) : DeviceScope(parsed(spec)) {}

DeviceScope::DeviceScope(Device device)
    : DeviceScope(DeviceSpec{.type = device.type, .index = device.index}) {}

DeviceScope::DeviceScope(const DeviceSpec& spec)
    : merged_(current_device_scope().merged_with(spec)),
      is_remote_(!is_of_this_process(merged_)),
      outer_(innermost()) {
  if (!is_remote_ && merged_.type) device_ = resolve(merged_);
  innermost() = this;
}

DeviceScope::~DeviceScope() { innermost() = outer_; }

std::optional<Device> DeviceScope::device(std::string_view who) const {
  if (is_remote_ && RemoteRecorder::current()) return Device{};  // tensors are sent from the CPU
  if (is_remote_) {
    fail(ErrorCode::kUnavailable, who, ": the device scope '", merged_.to_string(),
         "' is in another process; expected a device of this process, '",
         process_spec().to_string(),
         "', or a Session that reaches the task; use `const auto scope = session.scope();`, or a "
         "scope without a job or a task");
  }
  return device_;
}

const DeviceScope* DeviceScope::current() { return innermost(); }

NoDeviceScope::NoDeviceScope() : outer_(std::exchange(innermost(), nullptr)) {}
NoDeviceScope::~NoDeviceScope() { innermost() = outer_; }

DeviceSpec current_device_scope() {
  const DeviceScope* const scope = DeviceScope::current();
  return scope ? scope->merged() : DeviceSpec();
}

Device current_device() {
  const DeviceScope* const scope = innermost();
  if (!scope) return Device{};
  return scope->device("a new tensor or variable").value_or(Device{});
}

DeviceSpec process_spec() {
  MutexLock lock(process().mutex);
  return process().spec;
}

void set_process_spec(const DeviceSpec& spec) {
  MutexLock lock(process().mutex);
  process().spec = {.job = spec.job.value_or("localhost"),
                    .replica = spec.replica.value_or(0),
                    .task = spec.task.value_or(0)};
}

bool is_of_this_process(const DeviceSpec& spec) {
  if (!spec.job && !spec.replica && !spec.task) return true;
  const DeviceSpec own = process_spec();
  if (differs(spec.replica, own.replica)) return false;
  if (spec.job == "localhost") return spec.task.value_or(0) == 0;
  return !differs(spec.job, own.job) && !differs(spec.task, own.task);
}

std::string full_device_name(const Device& device) {
  DeviceSpec spec = process_spec();
  spec.type = device.type;
  spec.index = device.index;
  return spec.to_string();
}

// Log of placements, with TensorFlow's names.

namespace {

// Names in OpId order. Operations that tf does not have are named in tf's style.
// clang-format off
constexpr std::string_view kTfNames[] = {
    "Neg", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Abs", "Sign", "Reciprocal", "Floor",
    "Ceil", "Round", "Erf", "Log1p", "Expm1", "Sin", "Cos",
    "Relu", "Sigmoid", "Tanh", "Softplus", "Elu", "Gelu", "GeluTanh",
    "LogicalNot", "Cast", "ClipByValue",
    "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Pow", "AddRelu",
    "FloorDiv", "FloorMod",
    "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual",
    "LogicalAnd", "LogicalOr",
    "ReluGrad", "SigmoidGrad", "TanhGrad", "EluGrad", "GeluGrad", "GeluTanhGrad",
    "SelectV2",
    "Sum", "Mean", "Max", "Min", "Prod", "Any",
    "All", "ArgMax", "ArgMin",
    "MatMul",
    "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "BiasAddGrad",
    "MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad",
    "FusedBatchNormV3", "FusedBatchNormGradV3", "FusedBatchNormInference",
    "LRN", "LRNGrad",
    "GroupNorm", "GroupNormGrad",
    "Softmax", "LogSoftmax", "SoftmaxGrad", "LogSoftmaxGrad",
    "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogitsGrad", "SigmoidCrossEntropyWithLogits",
    "Attention", "AttentionGrad",
    "Reshape", "Transpose", "Slice", "PadV2", "ConcatV2", "BroadcastTo", "OneHot", "GatherV2",
    "StopGradient", "ScatterNd", "ReverseV2", "Cumsum", "TopKV2",
    "Upsample", "UpsampleGrad",
    "Dropout"};
// clang-format on
static_assert(std::size(kTfNames) == static_cast<std::size_t>(OpId::kCount));

std::atomic<bool> is_logged{false};

struct Sink {
  Mutex mutex;
  PlacementSink function TUTTI_GUARDED_BY(mutex);
};

Sink& sink() {
  static Sink one;
  return one;
}

}  // namespace

void set_log_device_placement(bool on, PlacementSink new_sink) {
  {
    MutexLock lock(sink().mutex);
    sink().function = std::move(new_sink);
  }
  is_logged.store(on);
}

std::string_view tf_op_name(OpId op) {
  TUTTI_CHECK(op < OpId::kCount, "tf_op_name: expected an OpId, got ", static_cast<int>(op));
  return kTfNames[static_cast<std::size_t>(op)];
}

namespace internal {

bool placement_is_logged() { return is_logged.load(std::memory_order_relaxed); }

void log_placement(const OpCall& call, std::span<const Tensor> outputs) {
  const Tensor& placed = outputs.empty() ? call.inputs[0] : outputs[0];
  const auto remote = remote_device_of(placed);
  const std::string line = tutti::concat(
      tf_op_name(call.op), ": ", remote ? remote->to_string() : full_device_name(placed.device()));
  MutexLock lock(sink().mutex);
  if (sink().function) return sink().function(line);
  log_info(line);
}

}  // namespace internal
}  // namespace tutti
