// Helpers for tests of cross-device operations: devices, replica values, operations by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::cdo_tests {

using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;

/// Names of the operations in every build; other tests may register more.
inline const std::vector<std::string> kBuiltinOps = {"canonical", "hierarchical_copy",
                                                     "reduction_to_one_device", "ring"};

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

/// Returns values[r] on cpu:r, each a float32 scalar.
inline PerReplica<Gradient> scalars(const std::vector<double>& values) {
  std::vector<Gradient> result;
  for (std::size_t r = 0; r < values.size(); ++r) {
    result.emplace_back(Tensor::scalar(values[r], DType::kFloat32, cpu(static_cast<int>(r))));
  }
  return PerReplica<Gradient>(std::move(result));
}

/// Returns slices with rows of float32; `values` is row-major.
inline IndexedSlices rows_of(const std::vector<float>& values,
                             const std::vector<std::int64_t>& indices, const Shape& dense_shape,
                             Device device = {}) {
  const auto n = static_cast<std::int64_t>(indices.size());
  return {Tensor::from<float>(dense_shape.with_dim(0, n), values, device),
          Tensor::from<std::int64_t>({n}, indices, device), dense_shape};
}

/// Returns slices[r] on cpu:r.
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

/// Sums the replicas' values elementwise. In each round, value 2i+1 is added to value 2i; an
/// unpaired last value enters the next round unchanged.
template <class T>
std::vector<T> tree_sums(std::vector<std::vector<T>> values) {
  while (values.size() > 1) {
    std::vector<std::vector<T>> next;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      next.push_back(values[i]);
      if (i + 1 == values.size()) continue;
      for (std::size_t k = 0; k < next.back().size(); ++k) next.back()[k] += values[i + 1][k];
    }
    values = std::move(next);
  }
  return values[0];
}

using Communicators = std::vector<std::unique_ptr<Communicator>>;

inline Communicator& of(const Communicators& all, int rank) {
  return *all[static_cast<std::size_t>(rank)];
}

/// Runs body(communicator) on one thread per rank of an in-process group; returns each rank's
/// error.
template <class Body>
std::vector<std::string> errors_of_communicators(int size, const CommunicatorOptions& options,
                                                 const Body& body) {
  const Communicators all = in_process_communicators(size, options);
  return errors_of_ranks(size, [&](int rank) {
    SCOPED_TRACE(concat("rank ", rank));
    body(of(all, rank));
  });
}
template <class Body>
std::vector<std::string> errors_of_communicators(int size, const Body& body) {
  return errors_of_communicators(size, {}, body);
}
/// Same as errors_of_communicators(), but expects no error.
template <class Body>
void expect_on_communicators(int size, const CommunicatorOptions& options, const Body& body) {
  EXPECT_THAT(errors_of_communicators(size, options, body), ::testing::Each(std::string()));
}
template <class Body>
void expect_on_communicators(int size, const Body& body) {
  expect_on_communicators(size, {}, body);
}

}  // namespace tutti::cdo_tests
