// Simulated cuDNN backend API: descriptors, heuristics, plans, and convolutions by plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_simulation/math_simulation.h"
#include "tests/cuda_simulation/simulation.h"

namespace tutti::cuda_simulation {
namespace {

/// Descriptor with the attributes that were set and the result of finalizing it.
struct Descriptor {
  struct Value {
    cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
    std::int64_t count = 0;
    std::vector<std::byte> bytes;                          // for all other types
    std::vector<std::shared_ptr<Descriptor>> descriptors;  // for CUDNN_TYPE_BACKEND_DESCRIPTOR
  };

  explicit Descriptor(cudnnBackendDescriptorType_t kind) : type(kind) {}

  bool has(cudnnBackendAttributeName_t name) const { return values.contains(name); }
  std::vector<std::int64_t> integers(cudnnBackendAttributeName_t name) const {
    const Value& value = values.at(name);
    std::vector<std::int64_t> result(static_cast<std::size_t>(value.count));
    std::memcpy(result.data(), value.bytes.data(), value.bytes.size());
    return result;
  }
  std::int64_t integer(cudnnBackendAttributeName_t name) const { return integers(name).at(0); }
  /// Returns an attribute that is an enumerator, a pointer or a float.
  template <class T>
  T plain(cudnnBackendAttributeName_t name) const {
    T result{};
    std::memcpy(&result, values.at(name).bytes.data(), sizeof(T));
    return result;
  }
  const Descriptor& descriptor(cudnnBackendAttributeName_t name) const {
    return *values.at(name).descriptors.at(0);
  }

  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values;
  // engine number, in descriptors of engines, configurations and plans; otherwise -1
  std::int64_t engine = -1;
  std::shared_ptr<const Descriptor> operation;  // null except in configurations and plans
};

/// Parameters of a finalized convolution. Dimensions are [outer, channels, height, width].
struct ConvolutionNumbers {
  struct Tensor {
    std::int64_t id = 0, alignment = 1;
    DType dtype = DType::kFloat32;
    std::array<std::int64_t, 4> dims{}, strides{};
    std::int64_t at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
      return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
    }
  };
  Tensor x, filter, y;
  const Tensor* result = nullptr;
  std::array<std::int64_t, 2> stride{}, dilation{}, pad_before{}, pad_after{};
  double alpha = 1.0, beta = 0.0;
};

/// Addresses of x, filter and y.
struct ConvolutionPointers {
  void *x = nullptr, *filter = nullptr, *y = nullptr;
};

/// Names of the attributes of a forward, backward data or backward filter convolution.
struct Names {
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
};
Names names_of(cudnnBackendDescriptorType_t type) {
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
    return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  }
  return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

template <std::size_t n>
std::array<std::int64_t, n> array_of(const std::vector<std::int64_t>& values) {
  std::array<std::int64_t, n> result{};
  std::copy_n(values.begin(), std::min(n, values.size()), result.begin());
  return result;
}

ConvolutionNumbers::Tensor tensor_of(const Descriptor& descriptor) {
  return {descriptor.integer(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          descriptor.integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
          *dtype_of_cudnn(descriptor.plain<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
          array_of<4>(descriptor.integers(CUDNN_ATTR_TENSOR_DIMENSIONS)),
          array_of<4>(descriptor.integers(CUDNN_ATTR_TENSOR_STRIDES))};
}

double scale_of(const Descriptor& operation, cudnnBackendAttributeName_t name) {
  return operation.values.at(name).type == CUDNN_TYPE_DOUBLE
             ? operation.plain<double>(name)
             : static_cast<double>(operation.plain<float>(name));
}

/// Calls body(offset in x, offset in filter, offset in y) for each product of the convolution.
template <class Body>
void for_each_product(const ConvolutionNumbers& c, const Body& body) {
  const std::int64_t per_group = c.filter.dims[1];
  const std::int64_t groups = c.x.dims[1] / per_group, out = c.y.dims[1] / groups;
  for (std::int64_t n = 0; n < c.y.dims[0]; ++n) {
    for (std::int64_t k = 0; k < c.y.dims[1]; ++k) {
      for (std::int64_t p = 0; p < c.y.dims[2] * c.y.dims[3]; ++p) {
        const std::int64_t oh = p / c.y.dims[3], ow = p % c.y.dims[3];
        for (std::int64_t r = 0; r < c.filter.dims[2] * c.filter.dims[3]; ++r) {
          const std::int64_t kh = r / c.filter.dims[3], kw = r % c.filter.dims[3];
          const std::int64_t ih = oh * c.stride[0] + kh * c.dilation[0] - c.pad_before[0];
          const std::int64_t iw = ow * c.stride[1] + kw * c.dilation[1] - c.pad_before[1];
          if (ih < 0 || ih >= c.x.dims[2] || iw < 0 || iw >= c.x.dims[3]) continue;
          for (std::int64_t i = 0; i < per_group; ++i) {
            body(c.x.at(n, k / out * per_group + i, ih, iw), c.filter.at(k, i, kh, kw),
                 c.y.at(n, k, oh, ow));
          }
        }
      }
    }
  }
}

bool is_convolution(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

/// Returns the parameters of a convolution, all of whose attributes must be set.
std::unique_ptr<ConvolutionNumbers> numbers_of(const Descriptor& operation) {
  const Names names = names_of(operation.type);
  const Descriptor& window = operation.descriptor(names.window);
  auto numbers = std::make_unique<ConvolutionNumbers>();
  numbers->x = tensor_of(operation.descriptor(names.x));
  numbers->filter = tensor_of(operation.descriptor(names.filter));
  numbers->y = tensor_of(operation.descriptor(names.y));
  numbers->stride = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES));
  numbers->dilation = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_DILATIONS));
  numbers->pad_before = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS));
  numbers->pad_after = array_of<2>(window.integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS));
  numbers->alpha = scale_of(operation, names.alpha);
  numbers->beta = scale_of(operation, names.beta);
  numbers->result = operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                        ? &numbers->y
                    : operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                        ? &numbers->x
                        : &numbers->filter;
  return numbers;
}

/// Returns a description of the first mistake in the convolution, or "" if it is valid.
std::string what_is_wrong_with(const ConvolutionNumbers& c) {
  if (c.x.dtype != c.y.dtype || c.filter.dtype != c.y.dtype) return "data types differ";
  if (c.x.dims[0] != c.y.dims[0]) return "batch sizes of x and y differ";
  if (c.filter.dims[1] < 1 || c.x.dims[1] % c.filter.dims[1] != 0) {
    return "channels of x are not a multiple of the filter's input channels";
  }
  if (c.y.dims[1] != c.filter.dims[0]) return "channels of y differ from the filter's";
  if (c.y.dims[1] % (c.x.dims[1] / c.filter.dims[1]) != 0) {
    return "channels of y are not a multiple of the groups";
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t reach = (c.filter.dims[i + 2] - 1) * c.dilation[i] + 1;
    const std::int64_t room = c.x.dims[i + 2] + c.pad_before[i] + c.pad_after[i] - reach;
    if (room < 0 || c.y.dims[i + 2] != room / c.stride[i] + 1) return "wrong spatial size of y";
  }
  return "";
}

void run_convolution(const ConvolutionNumbers& c, const ConvolutionPointers& pointers,
                     bool in_tf32) {
  const auto read = [&](const ConvolutionNumbers::Tensor& tensor, const void* data,
                        std::int64_t i) {
    const double value = element(tensor.dtype, data, i);
    return in_tf32 && tensor.dtype == DType::kFloat32 ? as_tf32(value) : value;
  };
  const auto& dims = c.result->dims;
  std::vector<double> sums(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]), 0.0);
  const auto sum = [&](std::int64_t i) -> double& { return sums[static_cast<std::size_t>(i)]; };
  for_each_product(c, [&](std::int64_t x, std::int64_t filter, std::int64_t y) {
    if (c.result == &c.y) {
      sum(y) += read(c.x, pointers.x, x) * read(c.filter, pointers.filter, filter);
    } else if (c.result == &c.x) {
      sum(x) += read(c.y, pointers.y, y) * read(c.filter, pointers.filter, filter);
    } else {
      sum(filter) += read(c.x, pointers.x, x) * read(c.y, pointers.y, y);
    }
  });
  void* const result = c.result == &c.y   ? pointers.y
                       : c.result == &c.x ? pointers.x
                                          : pointers.filter;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
    const double old = c.beta != 0.0 ? c.beta * element(c.result->dtype, result, i) : 0.0;
    set_element(c.result->dtype, result, i, c.alpha * sum(i) + old);
  }
}

/// Attribute that a descriptor may have. Unless `optional`, it must be set before finalizing.
struct Rule {
  cudnnBackendDescriptorType_t owner;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t max_count = 1;
  bool optional = false;
};

#define TUTTI_CONVOLUTION_RULES(owner, prefix, x, w, y)          \
  {owner, prefix##x, CUDNN_TYPE_BACKEND_DESCRIPTOR},             \
      {owner, prefix##w, CUDNN_TYPE_BACKEND_DESCRIPTOR},         \
      {owner, prefix##y, CUDNN_TYPE_BACKEND_DESCRIPTOR},         \
      {owner, prefix##CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR}, \
      {owner, prefix##ALPHA, CUDNN_TYPE_FLOAT}, {                \
    owner, prefix##BETA, CUDNN_TYPE_FLOAT                        \
  }

constexpr Rule kRules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 8},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_TYPE_CONVOLUTION_MODE},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64,
     2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64,
     2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64,
     2},
    TUTTI_CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_, X, W, Y),
    TUTTI_CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_, DX, W, DY),
    TUTTI_CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_, X, DW, DY),
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 16},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
     16},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
     1, true},
};
#undef TUTTI_CONVOLUTION_RULES

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;  // floats and enumerators
  }
}

bool type_fits(cudnnBackendAttributeType_t wanted, cudnnBackendAttributeType_t given) {
  return wanted == given || (wanted == CUDNN_TYPE_FLOAT && given == CUDNN_TYPE_DOUBLE);
}

std::shared_ptr<Descriptor> finalized(const void* handle) {
  auto found = handles<Descriptor>().find(handle);
  return found && found->finalized ? found : nullptr;
}

cudnnStatus_t store(Descriptor& owner, const Rule& rule, cudnnBackendAttributeType_t type,
                    std::int64_t count, const void* elements) {
  Descriptor::Value value;
  value.type = type;
  value.count = count;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::int64_t i = 0; i < count; ++i) {
      auto part = finalized(static_cast<void* const*>(elements)[i]);
      if (!part) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor is not finalized");
      }
      value.descriptors.push_back(std::move(part));
    }
  } else {
    value.bytes.resize(static_cast<std::size_t>(count) * bytes_of(type));
    std::memcpy(value.bytes.data(), elements, value.bytes.size());
  }
  owner.values[rule.name] = std::move(value);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_tensor(const Descriptor& tensor) {
  const auto dims = tensor.integers(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = tensor.integers(CUDNN_ATTR_TENSOR_STRIDES);
  const std::int64_t alignment = tensor.integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  const auto dtype = dtype_of_cudnn(tensor.plain<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE));
  if (dims.size() != 4 || strides.size() != dims.size() ||
      std::ranges::any_of(dims, [](std::int64_t d) { return d < 1; }) ||
      std::ranges::any_of(strides, [](std::int64_t s) { return s < 1; })) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "invalid dimensions or strides of a tensor");
  }
  if (!dtype || alignment < static_cast<std::int64_t>(size_of(*dtype)) ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "invalid type or alignment of a tensor");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_window(const Descriptor& window) {
  if (window.integer(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the simulation supports only 2 spatial dimensions");
  }
  const auto lowest = [&](cudnnBackendAttributeName_t name) {
    const auto values = window.integers(name);
    return values.size() == 2 ? std::min(values[0], values[1]) : -1;
  };
  if (lowest(CUDNN_ATTR_CONVOLUTION_DILATIONS) < 1 ||
      lowest(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES) < 1 ||
      lowest(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS) < 0 ||
      lowest(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) < 0) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "invalid dilations, strides or paddings");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_plan(Descriptor& plan) {
  const Descriptor& configuration = plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (math_behavior().refused_engines.contains(configuration.engine)) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine refused by the test");
  }
  plan.engine = configuration.engine;
  plan.operation = configuration.operation;
  internal::count_math({.plans = 1});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_checked(Descriptor& descriptor) {
  switch (descriptor.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return finalize_tensor(descriptor);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return finalize_window(descriptor);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return finalize_plan(descriptor);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      internal::count_math({.dnn_heuristics = 1});
      return CUDNN_STATUS_SUCCESS;
    default:
      break;
  }
  if (!is_convolution(descriptor.type)) return CUDNN_STATUS_SUCCESS;
  const std::string wrong = what_is_wrong_with(*numbers_of(descriptor));
  return wrong.empty() ? CUDNN_STATUS_SUCCESS : refuse(CUDNN_STATUS_BAD_PARAM, wrong);
}

std::vector<std::int64_t> engines_of(cudnnBackendHeurMode_t mode) {
  if (mode == CUDNN_HEUR_MODE_A) {
    return {kTensorCoreEngine, kNondeterministicEngine, kLargeWorkspaceEngine,
            kSmallWorkspaceEngine};
  }
  if (mode == CUDNN_HEUR_MODE_FALLBACK) return {kFallbackEngine};
  return {};
}

std::vector<cudnnBackendNumericalNote_t> notes_of(std::int64_t engine) {
  if (engine == kTensorCoreEngine) return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (engine == kNondeterministicEngine) return {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  return {};
}

std::int64_t workspace_of(std::int64_t engine) {
  if (engine == kLargeWorkspaceEngine) return std::int64_t{1} << 20;
  return engine == kSmallWorkspaceEngine ? 4096 : 0;
}

/// Writes at most `room` values to `to`. If `room` is 0 or `to` is null, only reports the number of
/// values.
template <class T>
cudnnStatus_t give(const std::vector<T>& values, std::int64_t room, std::int64_t* count, void* to) {
  const auto available = static_cast<std::int64_t>(values.size());
  if (room == 0 || to == nullptr) {
    *count = available;
    return CUDNN_STATUS_SUCCESS;
  }
  *count = std::min(room, available);
  std::copy_n(values.begin(), *count, static_cast<T*>(to));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t give_configurations(const Descriptor& heuristics, std::int64_t room,
                                  std::int64_t* count, void* to) {
  cudnnBackendHeurMode_t mode{};
  std::memcpy(&mode, heuristics.values.at(CUDNN_ATTR_ENGINEHEUR_MODE).bytes.data(), sizeof(mode));
  const auto engines = engines_of(mode);
  *count = static_cast<std::int64_t>(engines.size());
  if (room == 0 || to == nullptr) return CUDNN_STATUS_SUCCESS;
  *count = std::min(room, *count);
  const Descriptor& graph = heuristics.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  for (std::int64_t i = 0; i < *count; ++i) {
    const auto configuration = handles<Descriptor>().find(static_cast<void**>(to)[i]);
    if (!configuration || configuration->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
      return refuse(CUDNN_STATUS_BAD_PARAM, "expected engine configurations as results");
    }
    configuration->engine = engines[static_cast<std::size_t>(i)];
    configuration->operation = graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors.at(0);
    configuration->finalized = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t give_engine(const Descriptor& configuration, std::int64_t* count, void* to) {
  const auto engine = handles<Descriptor>().find(*static_cast<void**>(to));
  if (!engine || engine->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "expected an engine descriptor for the result");
  }
  engine->engine = configuration.engine;
  engine->finalized = true;
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

/// Returns the address that a variant pack contains for a tensor, or nullptr if the address is
/// missing or invalid.
void* pointer_for(const Descriptor& pack, const ConvolutionNumbers::Tensor& tensor) {
  const auto ids = pack.integers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.integers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto found = std::ranges::find(ids, tensor.id);
  if (found == ids.end() || pointers.size() != ids.size()) return nullptr;
  void* const pointer =
      std::bit_cast<void*>(pointers[static_cast<std::size_t>(found - ids.begin())]);
  const bool fits = is_device_memory(pointer) &&
                    is_aligned(pointer, static_cast<std::uint64_t>(tensor.alignment));
  return fits ? pointer : nullptr;
}

cudnnStatus_t execute(cudaStream_t stream, const Descriptor& plan, const Descriptor& pack) {
  const std::shared_ptr<const ConvolutionNumbers> numbers = numbers_of(*plan.operation);
  const ConvolutionPointers pointers{pointer_for(pack, numbers->x),
                                     pointer_for(pack, numbers->filter),
                                     pointer_for(pack, numbers->y)};
  if (pointers.x == nullptr || pointers.filter == nullptr || pointers.y == nullptr) {
    return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                  "an address is missing, not on the GPU, or misaligned");
  }
  const auto workspace_bytes = static_cast<std::size_t>(workspace_of(plan.engine));
  void* workspace = nullptr;
  if (pack.has(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)) {
    workspace = std::bit_cast<void*>(pack.integer(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  }
  if (workspace_bytes > 0 && !is_device_memory(workspace)) {
    return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "expected a workspace on the GPU");
  }
  const bool in_tf32 = plan.engine == kTensorCoreEngine;
  const cudaError_t error = try_enqueue(stream, [=] {
    if (workspace_bytes > 0) std::memset(workspace, 0x5a, workspace_bytes);
    run_convolution(*numbers, pointers, in_tf32);
  });
  if (error != cudaSuccess) return refuse(CUDNN_STATUS_EXECUTION_FAILED, cudaGetErrorName(error));
  internal::count_math({.convolutions = 1, .last_engine = plan.engine});
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace tutti::cuda_simulation

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = handles<Descriptor>().add(type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return handles<Descriptor>().remove(descriptor) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  const auto found = handles<Descriptor>().find(descriptor);
  if (!found || elements == nullptr) {
    return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "unknown descriptor, or null elements");
  }
  if (found->finalized) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "set after finalization");
  const auto* const rule = std::ranges::find_if(
      kRules, [&](const Rule& r) { return r.owner == found->type && r.name == name; });
  if (rule == std::end(kRules)) {
    return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "the descriptor has no such attribute");
  }
  if (!type_fits(rule->type, type)) {
    return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong type of attribute");
  }
  if (count < 1 || count > rule->max_count) {
    return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "wrong number of elements");
  }
  return store(*found, *rule, type, count, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const auto found = handles<Descriptor>().find(descriptor);
  if (!found) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "unknown descriptor");
  if (found->finalized) return refuse(CUDNN_STATUS_BAD_PARAM, "descriptor finalized twice");
  for (const Rule& rule : kRules) {
    if (rule.owner == found->type && !rule.optional && !found->has(rule.name)) {
      return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute was not set");
    }
  }
  const cudnnStatus_t status = finalize_checked(*found);
  found->finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t* count, void* elements) {
  const auto found = finalized(descriptor);
  if (!found) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "read before finalization");
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    return give_configurations(*found, room, count, elements);
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room == 1) {
    return give_engine(*found, count, elements);
  }
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE) {
    return give(notes_of(found->engine), room, count, elements);
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
    return give(std::vector<std::int64_t>{workspace_of(found->engine)}, room, count, elements);
  }
  return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the simulation cannot report this attribute");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const auto stream = stream_of(handle);
  const auto known_plan = finalized(plan), known_pack = finalized(pack);
  if (!stream) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "unknown handle");
  if (!known_plan || !known_pack || !known_plan->operation) {
    return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "plan and pack must be finalized");
  }
  return execute(*stream, *known_plan, *known_pack);
}

}  // extern "C"
