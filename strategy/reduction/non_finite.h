// Looking for gradients that are not finite: what was found in one step, and what to do about it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communication_options.h"

namespace tutti::internal {

/// A place in a step's gradients.
struct NonFiniteValue {
  static constexpr int kSum = -1;  // finite in every replica; their sum is not
  std::size_t variable = 0;        // index in the list
  std::int64_t index = 0;          // in the variable's elements, row-major
  int replica = kSum;
  auto operator<=>(const NonFiniteValue&) const = default;
};

/// How many of `count` elements are infinite or NaN; 0 for types that are not floating.
std::size_t count_non_finite(DType dtype, const std::byte* values, std::size_t count);
/// Sets them to zero; their number.
std::size_t clear_non_finite(DType dtype, std::byte* values, std::size_t count);
/// The index of the first; nothing: all are finite.
std::optional<std::size_t> first_non_finite(DType dtype, const std::byte* values,
                                            std::size_t count);
/// Which of the tensors, all on one GPU, have any. Waits for the GPU.
std::vector<std::size_t> indices_of_non_finite(std::span<const Tensor> on_gpu);
/// A copy with zeros in their places; the same tensor when there are none.
Tensor without_non_finite(const Tensor& tensor);

/// The lowest of the places that the threads of a step found. Threads: note(), any.
class NonFiniteFindings {
 public:
  void note(const NonFiniteValue& value);
  /// After all threads have noted theirs.
  const std::optional<NonFiniteValue>& lowest() const { return lowest_; }
  void replace(const NonFiniteValue& value) { lowest_ = value; }

 private:
  Mutex mutex_;
  std::optional<NonFiniteValue> lowest_;
};

/// "the gradient of Variable 'w' is not finite at flat index 7 on replica 1 in step 3".
std::string describe(const NonFiniteValue& value, const Variable& variable, std::uint64_t step);

}  // namespace tutti::internal
