// Convolutions with cuDNN's graph API: descriptors, and the choice of an engine.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/convolution_plans.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"
#include "tutti/core/error.h"

namespace tutti::cuda {
namespace {

using Dims = std::array<std::int64_t, 4>;

/// Describes a tensor stored as [outer, height, width, channels]. cuDNN's dimensions are [outer,
/// channels, height, width]; the strides define the order in memory.
BackendDescriptor tensor(std::int64_t id, DType dtype, const Dims& shape, std::int64_t alignment) {
  const auto& [outer, height, width, channels] = shape;
  const Dims dims{outer, channels, height, width};
  const Dims strides{height * width * channels, 1, width * channels, channels};
  BackendDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(dtype));
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  descriptor.set_integers(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  descriptor.set_integers(CUDNN_ATTR_TENSOR_STRIDES, strides);
  descriptor.finalize();
  return descriptor;
}

BackendDescriptor window_of(DType dtype, const Conv2dAttributes& a) {
  using Pair = std::array<std::int64_t, 2>;
  BackendDescriptor descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
                 dtype == DType::kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                 CUDNN_CROSS_CORRELATION);
  descriptor.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_DILATIONS, Pair{a.dilation_h, a.dilation_w});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Pair{a.stride_h, a.stride_w});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Pair{a.pad_top, a.pad_left});
  descriptor.set_integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Pair{a.pad_bottom, a.pad_right});
  descriptor.finalize();
  return descriptor;
}

/// cuDNN's names for an operation's attributes.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
};

OperationNames names_of(OpId op) {
  if (op == OpId::kConv2d) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
  if (op == OpId::kConv2dBackwardInput) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  }
  TUTTI_CHECK(op == OpId::kConv2dBackwardFilter, "expected a convolution, got ", to_string(op));
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

void set_scale(BackendDescriptor& operation, cudnnBackendAttributeName_t name, DType dtype,
               double value) {
  if (dtype == DType::kFloat64) {
    operation.set(name, CUDNN_TYPE_DOUBLE, value);
  } else {
    operation.set(name, CUDNN_TYPE_FLOAT, static_cast<float>(value));
  }
}

}  // namespace

BackendDescriptor::BackendDescriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

BackendDescriptor::~BackendDescriptor() {
  if (descriptor_ != nullptr) (void)cudnnBackendDestroyDescriptor(descriptor_);
}

BackendDescriptor& BackendDescriptor::operator=(BackendDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void BackendDescriptor::set_array(cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, std::int64_t count,
                                  const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
        "cudnnBackendSetAttribute");
}

void BackendDescriptor::finalize() {
  check(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

ConvolutionProblem::Key ConvolutionProblem::key() const {
  const Conv2dAttributes& a = attributes;
  Key key{static_cast<std::int64_t>(op), static_cast<std::int64_t>(dtype)};
  auto next = key.begin() + 2;
  for (const Dims& shape : {x, filter, y}) next = std::ranges::copy(shape, next).out;
  for (const std::int64_t value :
       {a.stride_h, a.stride_w, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right, a.dilation_h,
        a.dilation_w, a.groups, x_alignment, filter_alignment, y_alignment}) {
    *next++ = value;
  }
  TUTTI_CHECK(next <= key.end());
  return key;
}

ConvolutionGraph::ConvolutionGraph(const ConvolutionProblem& problem, cudnnHandle_t handle)
    : x(tensor(kXId, problem.dtype, problem.x, problem.x_alignment)),
      filter(tensor(kFilterId, problem.dtype, problem.filter, problem.filter_alignment)),
      y(tensor(kYId, problem.dtype, problem.y, problem.y_alignment)),
      window(window_of(problem.dtype, problem.attributes)),
      operation(names_of(problem.op).type),
      graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  const OperationNames names = names_of(problem.op);
  operation.set_descriptor(names.x, x);
  operation.set_descriptor(names.filter, filter);
  operation.set_descriptor(names.y, y);
  operation.set_descriptor(names.window, window);
  set_scale(operation, names.alpha, problem.dtype, 1.0);
  set_scale(operation, names.beta, problem.dtype, 0.0);
  operation.finalize();
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.set_descriptor(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();
}

// Search for engines: cuDNN's heuristics, the rules of MathOptions, and measurements if requested.

namespace {

std::int64_t count_of(const BackendDescriptor& descriptor, cudnnBackendAttributeName_t name,
                      cudnnBackendAttributeType_t type) {
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(descriptor.get(), name, type, 0, &count, nullptr),
        "cudnnBackendGetAttribute");
  return count;
}

/// Returns engine configurations, starting with the one that cuDNN expects to be the fastest; the
/// result may be empty.
std::vector<BackendDescriptor> configurations(const ConvolutionGraph& graph,
                                              cudnnBackendHeurMode_t mode,
                                              const ConvolutionTarget& target) {
  std::vector<BackendDescriptor> found;
  BackendDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set_descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.device != nullptr) {
    heuristics.set_descriptor(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
  }
  if (cudnnBackendFinalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) return found;
  const std::int64_t count =
      count_of(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> handles;
  for (std::int64_t i = 0; i < count; ++i) {
    handles.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  }
  std::int64_t written = 0;
  if (count > 0) {
    check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &written, handles.data()),
          "cudnnBackendGetAttribute");
  }
  found.erase(found.begin() + static_cast<std::ptrdiff_t>(written), found.end());
  return found;
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const BackendDescriptor& configuration) {
  const BackendDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  std::int64_t written = 0;
  check(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &written, &handle),
        "cudnnBackendGetAttribute");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, static_cast<std::int64_t>(notes.size()),
                                 &written, notes.data()),
        "cudnnBackendGetAttribute");
  return {notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(written)};
}

/// Returns true if `options` allow the engine. Tensor cores support float32 only as TF32.
bool is_allowed(const BackendDescriptor& configuration, DType dtype, const MathOptions& options) {
  const auto notes = notes_of(configuration);
  const auto noted = [&](cudnnBackendNumericalNote_t note) {
    return std::ranges::find(notes, note) != notes.end();
  };
  if (options.deterministic && noted(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
  if (noted(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
  return dtype != DType::kFloat32 || options.allow_tf32 ||
         !(noted(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
           noted(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
}

/// Finalizes the plan of an engine. Returns false, with the cause in `reason`, if the engine cannot
/// be used.
bool make_plan(ConvolutionPlan& made, const ConvolutionTarget& target, std::string& reason) {
  if (target.handle != nullptr) {
    made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  made.plan.set_descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, made.engine);
  if (target.device != nullptr) {
    made.plan.set_descriptor(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
  }
  // If this engine fails, for instance because its kernel does not compile, the next one may still
  // work.
  const cudnnStatus_t status = cudnnBackendFinalize(made.plan.get());
  if (status != CUDNN_STATUS_SUCCESS) {
    reason = cudnnGetErrorString(status);
    return false;
  }
  std::int64_t bytes = 0, written = 0;
  check(cudnnBackendGetAttribute(made.plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &written, &bytes),
        "cudnnBackendGetAttribute");
  made.workspace_bytes = static_cast<std::size_t>(bytes);
  return true;
}

void execute(const ConvolutionPlan& plan, const ConvolutionData& data, void* workspace,
             const KernelCall& call) {
  const std::array<std::int64_t, 3> ids{kXId, kFilterId, kYId};
  const std::array<const void*, 3> pointers{data.x, data.filter, data.y};
  BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set_array(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers.data());
  pack.set_integers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check(cudnnBackendExecute(call.libraries.dnn(call.stream), plan.plan.get(), pack.get()),
        "cudnnBackendExecute");
}

void* workspace_of(const ConvolutionPlan& plan, const KernelCall& call) {
  return plan.workspace_bytes > 0 ? call.workspace.allocate(plan.workspace_bytes) : nullptr;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

/// Owning wrapper of a CUDA event.
class Timestamp {
 public:
  Timestamp() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Timestamp() { (void)cudaEventDestroy(event_); }
  Timestamp(const Timestamp&) = delete;
  Timestamp& operator=(const Timestamp&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  float milliseconds_since(const Timestamp& earlier) {
    float time = 0.0f;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&time, earlier.event_, event_), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

float measured_milliseconds(const ConvolutionPlan& plan, const ConvolutionData& data,
                            void* workspace, const KernelCall& call) {
  constexpr int kRuns = 3;
  execute(plan, data, workspace, call);  // the first run loads the plan's code
  Timestamp start, end;
  start.record(call.stream);
  for (int i = 0; i < kRuns; ++i) execute(plan, data, workspace, call);
  end.record(call.stream);
  return end.milliseconds_since(start) / kRuns;
}

/// Removes plans for which there is too little memory, and returns a workspace that is large enough
/// for each remaining plan; nullptr if only one plan is left, because that plan need not be
/// measured.
void* workspace_of_all(std::vector<ConvolutionPlan>& plans, const KernelCall& call) {
  while (plans.size() > 1) {
    const auto largest =
        std::ranges::max_element(plans, {}, [](const auto& plan) { return plan.workspace_bytes; });
    try {
      return workspace_of(*largest, call);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kResourceExhausted) throw;
      plans.erase(largest);
    }
  }
  return nullptr;
}

/// Returns the fastest plan, measured on the data of the call; every run overwrites the result.
/// `plans` must not be empty.
ConvolutionPlan fastest_of(std::vector<ConvolutionPlan> plans, const ConvolutionData& data,
                           const KernelCall& call) {
  void* const workspace = workspace_of_all(plans, call);
  std::size_t best = 0;
  float best_time = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; plans.size() > 1 && i < plans.size(); ++i) {
    const float time = measured_milliseconds(plans[i], data, workspace, call);
    if (time < best_time) {
      best = i;
      best_time = time;
    }
  }
  return std::move(plans[best]);
}

}  // namespace

std::vector<ConvolutionPlan> supported_plans(const ConvolutionGraph& graph, DType dtype,
                                             const ConvolutionTarget& target,
                                             const MathOptions& options, std::size_t count,
                                             std::size_t max_workspace_bytes, std::string& reason) {
  std::vector<ConvolutionPlan> plans;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    if (!plans.empty()) break;
    for (BackendDescriptor& configuration : configurations(graph, mode, target)) {
      if (plans.size() == count) break;
      if (!is_allowed(configuration, dtype, options)) continue;
      ConvolutionPlan plan{std::move(configuration),
                           BackendDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
      if (!make_plan(plan, target, reason)) continue;
      if (plan.workspace_bytes <= max_workspace_bytes) {
        plans.push_back(std::move(plan));
      } else {
        reason = concat("it needs ", plan.workspace_bytes, " bytes of workspace");
      }
    }
  }
  return plans;
}

bool ConvolutionPlans::choose(Entry& entry, const ConvolutionProblem& problem,
                              const ConvolutionData& data, const KernelCall& call,
                              std::size_t max_workspace_bytes, std::string& reason) {
  const UncapturedScope not_captured;  // cuDNN may compile and load code
  const MathOptions& options = call.libraries.options();
  const cudnnHandle_t handle = call.libraries.dnn(call.stream);
  if (!entry.graph) entry.graph = std::make_unique<ConvolutionGraph>(problem, handle);
  const bool measure = options.num_measured_plans > 1 && !is_capturing(call.stream);
  auto plans = supported_plans(*entry.graph, problem.dtype, {handle, nullptr}, options,
                               measure ? static_cast<std::size_t>(options.num_measured_plans) : 1,
                               max_workspace_bytes, reason);
  if (plans.empty()) return false;
  entry.plan = std::make_unique<ConvolutionPlan>(fastest_of(std::move(plans), data, call));
  return true;
}

void ConvolutionPlans::run(const ConvolutionProblem& problem, const ConvolutionData& data,
                           const KernelCall& call) {
  Entry& entry = entries_[problem.key()];
  std::string reason;
  if (!entry.plan &&
      !choose(entry, problem, data, call, call.libraries.options().max_workspace_bytes, reason)) {
    fail(ErrorCode::kUnimplemented, to_string(problem.op), " of ", to_string(problem.dtype),
         " on cuDNN: no engine supports it",
         problem.dtype == DType::kFloat32 ? "; use TUTTI_TF32=1 or TUTTI_CUDNN_DETERMINISTIC=0"
                                          : "; use TUTTI_CUDNN_DETERMINISTIC=0",
         reason.empty() ? "" : " (the last engine reported: ", reason, reason.empty() ? "" : ")");
  }
  for (;;) {
    void* workspace = nullptr;
    try {
      workspace = workspace_of(*entry.plan, call);
    } catch (const Error& error) {
      // Chooses a slower engine that needs less workspace. If there is none, reports the shortage
      // of memory.
      if (error.code() != ErrorCode::kResourceExhausted || entry.plan->workspace_bytes == 0 ||
          !choose(entry, problem, data, call, entry.plan->workspace_bytes - 1, reason)) {
        throw;
      }
      continue;
    }
    return execute(*entry.plan, data, workspace, call);
  }
}

}  // namespace tutti::cuda
