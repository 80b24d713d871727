// Inputs for tests of operations: given or reproducible random values of any type and shape.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/tensor/tensor.h"

namespace tutti::testing {

/// Returns `values` as a tensor of `dtype`. For integer types, values are truncated towards zero
/// and then wrapped.
inline Tensor tensor_of(const Shape& shape, const std::vector<double>& values, DType dtype) {
  MutableTensor tensor(shape, dtype, {});
  visit_dtype(dtype, [&]<class T>() {
    using Wide = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensor.span<T>()[i] = static_cast<T>(static_cast<Wide>(values[i]));
    }
  });
  return tensor.freeze();
}

/// Returns random values that depend on `seed`: numbers in [low, high), truncated to integers for
/// integer types, or booleans that are true with a probability of 1/2.
inline Tensor random_values(const Shape& shape, DType dtype, double low, double high,
                            std::uint64_t seed = 1) {
  const RandomStream stream(RandomKey{seed, kUserPurpose});
  std::vector<double> values(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = low + (high - low) * stream.uniform64(i);
    if (dtype == DType::kBool) values[i] = stream.uniform64(i) < 0.5 ? 0.0 : 1.0;
  }
  return tensor_of(shape, values, dtype);
}

}  // namespace tutti::testing
