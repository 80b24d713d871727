// Sums of squares in a fixed order, for norms.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/sum_of_squares.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/gpu_device.h"
#include "tensor/kernel_table.h"
#include "tensor/step_hooks.h"
#include "tutti/core/error.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace {

constexpr std::size_t kBlock = 4096;

template <class T>
double square(T value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

template <class T>
double block_sum(const T* values, std::size_t count) {
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) sum += square(values[i]);
  return sum;
}

// Adds four blocks at a time, because a single chain of additions would wait for each sum. The
// order within each block is unchanged.
template <class T>
void four_block_sums(const T* values, std::vector<double>& sums) {
  double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    a += square(values[i]);
    b += square(values[kBlock + i]);
    c += square(values[2 * kBlock + i]);
    d += square(values[3 * kBlock + i]);
  }
  sums.insert(sums.end(), {a, b, c, d});
}

}  // namespace

double tree_sum(std::vector<double> sums) {
  while (sums.size() > 1) {
    std::size_t out = 0;
    for (std::size_t i = 0; i < sums.size(); i += 2) {
      sums[out++] = i + 1 < sums.size() ? sums[i] + sums[i + 1] : sums[i];
    }
    sums.resize(out);
  }
  return sums.empty() ? 0.0 : sums.front();
}

double sum_of_squares(DType dtype, const void* data, std::size_t count) {
  return visit_floating(dtype, "sum_of_squares", [&]<class T>() {
    const T* const values = static_cast<const T*>(data);
    std::vector<double> sums;
    std::size_t first = 0;
    for (; first + 4 * kBlock <= count; first += 4 * kBlock) four_block_sums(values + first, sums);
    for (; first < count; first += kBlock) {
      sums.push_back(block_sum(values + first, std::min(kBlock, count - first)));
    }
    return tree_sum(std::move(sums));
  });
}

namespace {

/// Computes the sums with compute(), for steps that are traced or run in other tasks, and for
/// tensors that are sharded over a mesh.
Tensor traced_sums_of_squares(std::span<const Tensor> tensors) {
  const auto operation = [](OpId op, std::vector<Tensor> inputs, const Shape& shape,
                            Attributes attributes = {}) {
    return compute({op, std::move(inputs), {{shape, DType::kFloat64}}, attributes}).front();
  };
  std::vector<Tensor> sums;
  for (const Tensor& x : tensors) {
    const Tensor wide = operation(OpId::kCast, {x}, x.shape(), CastAttributes{DType::kFloat64});
    const Tensor squares = operation(OpId::kMultiply, {wide, wide}, x.shape());
    const AxesAttributes all{.axes = (1u << x.rank()) - 1};
    const Tensor sum = operation(OpId::kReduceSum, {squares}, {}, all);
    sums.push_back(dispatch_one({OpId::kReshape, {sum}, {{Shape{1}, DType::kFloat64}}, {}}));
  }
  const Shape shape{static_cast<std::int64_t>(sums.size())};
  return operation(OpId::kConcat, std::move(sums), shape, AxisAttributes{});
}

}  // namespace

Tensor sums_of_squares(std::span<const Tensor> tensors) {
  TUTTI_CHECK(!tensors.empty(), "sums_of_squares: expected at least one tensor, got none");
  const bool is_elsewhere = std::ranges::any_of(tensors, [](const Tensor& each) {
    return remote_device_of(each) || internal::lazy_value(each);
  });
  if (StepTracer::current() || is_elsewhere) return traced_sums_of_squares(tensors);
  const Device device = tensors.front().device();
  const MutableTensor sums({static_cast<std::int64_t>(tensors.size())}, DType::kFloat64, device);
  if (device.type == DeviceType::kGpu) {
    GpuDevice::of(device).sums_of_squares(tensors, sums);
    return sums.freeze();
  }
  const auto places = sums.span<double>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    places[i] = sum_of_squares(tensors[i].dtype(), tensors[i].bytes().data(),
                               static_cast<std::size_t>(tensors[i].num_elements()));
  }
  return sums.freeze();
}

}  // namespace tutti
