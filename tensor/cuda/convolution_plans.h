// Convolutions with cuDNN's graph API: descriptors, and the choice of an engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/math_libraries.h"
#include "tutti/tensor/op.h"

namespace tutti::cuda {

/// Owning wrapper of a cuDNN backend API descriptor.
class BackendDescriptor {
 public:
  explicit BackendDescriptor(cudnnBackendDescriptorType_t type);
  ~BackendDescriptor();
  BackendDescriptor(BackendDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  BackendDescriptor& operator=(BackendDescriptor&& other) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_array(name, type, 1, &value);
  }
  void set_integers(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    set_array(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set_descriptor(cudnnBackendAttributeName_t name, const BackendDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.descriptor_);
  }
  void set_array(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                 std::int64_t count, const void* values);
  /// Throws cuDNN's error if the attributes are not valid.
  void finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// One of the three computations of a convolution: its result, or the gradient of x or of the
/// filter. Shapes: x NHWC, filter OHWI (cuDNN requires the output channels outermost), y NHWC.
struct ConvolutionProblem {
  OpId op = OpId::kConv2d;
  DType dtype = DType::kFloat32;
  std::array<std::int64_t, 4> x{}, filter{}, y{};
  Conv2dAttributes attributes;
  std::int64_t x_alignment = 16, filter_alignment = 16, y_alignment = 16;  // bytes

  using Key = std::array<std::int64_t, 26>;
  Key key() const;
};

/// Ids of the tensors in the graph.
inline constexpr std::int64_t kXId = 1, kFilterId = 2, kYId = 3;

/// A finalized operation graph and its parts, which must live as long as the graph.
struct ConvolutionGraph {
  /// `handle` may be nullptr if no plan is made from the graph.
  ConvolutionGraph(const ConvolutionProblem& problem, cudnnHandle_t handle);

  BackendDescriptor x, filter, y, window, operation, graph;
};

// Choice of a cuDNN engine, once per convolution problem; by measurement if requested.

/// Device addresses of a convolution's tensors, including its result.
struct ConvolutionData {
  const void* x = nullptr;
  const void* filter = nullptr;
  const void* y = nullptr;
};

/// An engine that can run a problem, and the workspace that it needs.
struct ConvolutionPlan {
  BackendDescriptor engine, plan;
  std::size_t workspace_bytes = 0;
};

/// Device for which engines are looked up: the device of `handle`, or, for tests on machines
/// without the device, the device that a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR describes.
struct ConvolutionTarget {
  cudnnHandle_t handle = nullptr;
  const BackendDescriptor* device = nullptr;
};

/// Returns the first `count` plans in cuDNN's order that `options` allow and that need at most
/// `max_workspace_bytes`. If no plan qualifies, stores in `reason` why the last one was rejected.
std::vector<ConvolutionPlan> supported_plans(const ConvolutionGraph& graph, DType dtype,
                                             const ConvolutionTarget& target,
                                             const MathOptions& options, std::size_t count,
                                             std::size_t max_workspace_bytes, std::string& reason);

/// Plans chosen for one logical device.
class ConvolutionPlans {
 public:
  /// Enqueues the convolution on the stream of `call`. Throws kUnimplemented if cuDNN has no engine
  /// for it, and kResourceExhausted if there is not enough memory for any engine.
  void run(const ConvolutionProblem& problem, const ConvolutionData& data, const KernelCall& call);
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<ConvolutionGraph> graph;
    std::unique_ptr<ConvolutionPlan> plan;
  };
  /// Chooses a plan. Returns false if no plan fits.
  bool choose(Entry& entry, const ConvolutionProblem& problem, const ConvolutionData& data,
              const KernelCall& call, std::size_t max_workspace_bytes, std::string& reason);

  std::map<ConvolutionProblem::Key, Entry> entries_;
};

}  // namespace tutti::cuda
