// Descriptors of cuDNN's backend API, as the stand-in keeps them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/cuda_simulation/handles.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

/// A descriptor: the attributes that were set, and what finalizing made of them.
struct Descriptor {
  struct Value {
    cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
    std::int64_t count = 0;
    std::vector<std::byte> bytes;                          // plain types
    std::vector<std::shared_ptr<Descriptor>> descriptors;  // CUDNN_TYPE_BACKEND_DESCRIPTOR
  };

  explicit Descriptor(cudnnBackendDescriptorType_t kind) : type(kind) {}

  bool has(cudnnBackendAttributeName_t name) const { return values.contains(name); }
  std::vector<std::int64_t> integers(cudnnBackendAttributeName_t name) const;
  std::int64_t integer(cudnnBackendAttributeName_t name) const { return integers(name).at(0); }
  /// An enumerator, or a pointer, or a float.
  template <class T>
  T plain(cudnnBackendAttributeName_t name) const;
  const Descriptor& descriptor(cudnnBackendAttributeName_t name) const {
    return *values.at(name).descriptors.at(0);
  }

  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values;
  std::int64_t engine = -1;                     // of configurations, engines and plans
  std::shared_ptr<const Descriptor> operation;  // of the same
};

Handles<Descriptor>& descriptors();

/// A finalized convolution operation in numbers. Dimensions: [outer, channels, height, width].
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

bool is_convolution(cudnnBackendDescriptorType_t type);
/// Of an operation whose attributes are all there.
std::unique_ptr<ConvolutionNumbers> numbers_of(const Descriptor& operation);
/// What is wrong with it; "" for nothing.
std::string what_is_wrong_with(const ConvolutionNumbers& numbers);
/// Where x, filter and y lie.
struct ConvolutionPointers {
  void *x = nullptr, *filter = nullptr, *y = nullptr;
};
void run_convolution(const ConvolutionNumbers& numbers, const ConvolutionPointers& pointers,
                     bool in_tf32);

}  // namespace tutti::cuda_simulation
