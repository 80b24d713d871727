// Lines of the placement log, in TensorFlow's words.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/placement_log.h"

#include <atomic>
#include <iterator>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {
namespace {

// In the order of OpId. Where tf has no such operation, ours in tf's spelling.
// clang-format off
constexpr std::string_view kTfNames[] = {
    "Neg", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Abs", "Sign", "Reciprocal", "Floor",
    "Ceil", "Round", "Erf", "Log1p", "Expm1", "Sin", "Cos",
    "Relu", "Sigmoid", "Tanh", "Softplus", "Elu", "Gelu", "LogicalNot", "Cast", "ClipByValue",
    "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Pow", "AddRelu",
    "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual",
    "LogicalAnd", "LogicalOr",
    "ReluGrad", "SigmoidGrad", "TanhGrad", "EluGrad", "GeluGrad",
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
  TUTTI_CHECK(op < OpId::kCount, "OpId: no such value: ", static_cast<int>(op));
  return kTfNames[static_cast<std::size_t>(op)];
}

namespace internal {

bool placement_is_logged() { return is_logged.load(std::memory_order_relaxed); }

void log_placement(const OpCall& call, std::span<const Tensor> outputs) {
  const Device device = outputs.empty() ? call.inputs[0].device() : outputs[0].device();
  const std::string line = tutti::concat(tf_op_name(call.op), ": ", full_device_name(device));
  MutexLock lock(sink().mutex);
  if (sink().function) return sink().function(line);
  log_info(line);
}

}  // namespace internal
}  // namespace tutti
