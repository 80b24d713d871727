// What tests of cross-device operations share: devices, values of replicas, operations by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::cdo_tests {

using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;

/// The operations that every build has; later ones may have been registered by other tests.
inline const std::vector<std::string> kBuiltinOps = {
    "canonical", "hierarchical_copy", "reduction_to_one_device", "ring", "halving_doubling", "tree",
    "auto"};

inline constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

inline Device cpu(int index) { return {DeviceType::kCpu, index}; }

inline std::vector<Device> cpus(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(cpu(i));
  return devices;
}

inline std::unique_ptr<CrossDeviceOps> make_op(const std::string& name, int num_replicas) {
  return build_cross_device_ops(make_cross_device_ops(name),
                                Group{num_replicas, 0, cpus(num_replicas)});
}

/// values[r] on cpu:r, each a float32 scalar.
inline PerReplica<Gradient> scalars(const std::vector<double>& values) {
  std::vector<Gradient> result;
  for (std::size_t r = 0; r < values.size(); ++r) {
    result.emplace_back(Tensor::scalar(values[r], DType::kFloat32, cpu(static_cast<int>(r))));
  }
  return PerReplica<Gradient>(std::move(result));
}

/// Rows of float32; `values` is row-major.
inline IndexedSlices rows_of(const std::vector<float>& values,
                             const std::vector<std::int64_t>& indices, const Shape& dense_shape,
                             Device device = {}) {
  const auto n = static_cast<std::int64_t>(indices.size());
  return {Tensor::from<float>(dense_shape.with_dim(0, n), values, device),
          Tensor::from<std::int64_t>({n}, indices, device), dense_shape};
}

/// slices[r] on cpu:r.
inline PerReplica<Gradient> sparse(const std::vector<IndexedSlices>& slices) {
  std::vector<Gradient> result;
  for (std::size_t r = 0; r < slices.size(); ++r) {
    const Device device = cpu(static_cast<int>(r));
    result.emplace_back(IndexedSlices{slices[r].values.to(device), slices[r].indices.to(device),
                                      slices[r].dense_shape});
  }
  return PerReplica<Gradient>(std::move(result));
}

inline void expect_rows(const Gradient& actual, const std::vector<double>& values,
                        const std::vector<double>& indices) {
  ASSERT_TRUE(actual.is_slices());
  EXPECT_EQ(actual.slices().values.to_doubles(), values);
  EXPECT_EQ(actual.slices().indices.to_doubles(), indices);
}

inline Device device_of_value(const Gradient& gradient) {
  return gradient.is_slices() ? gradient.slices().values.device() : gradient.dense().device();
}

}  // namespace tutti::cdo_tests
