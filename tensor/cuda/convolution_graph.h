// A convolution as cuDNN's graph API describes it: tensors, operation, operation graph.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "tutti/tensor/op.h"

namespace tutti::cuda {

/// Owns a descriptor of cuDNN's backend API.
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
  /// Throws what cuDNN says against it.
  void finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// One of the three computations of a convolution. Shapes: x NHWC, filter OHWI (not HWIO: cuDNN
/// wants the output channels outermost), y NHWC.
struct ConvolutionProblem {
  OpId op = OpId::kConv2d;
  DType dtype = DType::kFloat32;
  std::array<std::int64_t, 4> x{}, filter{}, y{};
  Conv2dAttributes attributes;
  std::int64_t x_alignment = 16, filter_alignment = 16, y_alignment = 16;  // bytes

  using Key = std::array<std::int64_t, 26>;
  Key key() const;
};

/// How the graph names its tensors.
inline constexpr std::int64_t kXId = 1, kFilterId = 2, kYId = 3;

/// The finalized operation graph and what it is made of, which lives as long.
struct ConvolutionGraph {
  /// `handle` may be nullptr where no plan will be made of it.
  ConvolutionGraph(const ConvolutionProblem& problem, cudnnHandle_t handle);

  BackendDescriptor x, filter, y, window, operation, graph;
};

}  // namespace tutti::cuda
