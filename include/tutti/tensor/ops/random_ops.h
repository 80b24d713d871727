// Random tensors, which are pure functions of a key (tutti/core/random.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "tutti/core/random.h"
#include "tutti/tensor/op.h"

namespace tutti {

/// Returns a key for random tensors that is unique to this call: it combines the global seed
/// (set_random_seed()), the step, the replica and the number of earlier calls. Random tensors use
/// it by default, so the same calls in the same order return the same numbers. In a captured step,
/// functions that draw numbers on the host throw.
RandomKey next_random_key();

/// Returns uniformly distributed numbers in [low, high), of a floating-point dtype. Element i
/// depends only on the key and i.
Tensor random_uniform(const Shape& shape, const RandomKey& key = next_random_key(),
                      double low = 0.0, double high = 1.0, DType dtype = DType::kFloat32,
                      Device device = current_device());
/// Returns normally distributed numbers with this mean and standard deviation. Element i depends
/// only on the key and i.
Tensor random_normal(const Shape& shape, const RandomKey& key = next_random_key(),
                     double mean = 0.0, double stddev = 1.0, DType dtype = DType::kFloat32,
                     Device device = current_device());
/// Same as random_normal(), but redraws values beyond two standard deviations.
Tensor truncated_normal(const Shape& shape, const RandomKey& key = next_random_key(),
                        double mean = 0.0, double stddev = 1.0, DType dtype = DType::kFloat32,
                        Device device = current_device());

namespace internal {
struct Nothing {};
}  // namespace internal
/// Type of `{}` in place of a key. The overloads below then use next_random_key(), as if the
/// argument were omitted. `RandomKey{}`, however, is a key.
using NoRandomKey = std::initializer_list<internal::Nothing>;
/// Same as random_uniform() with next_random_key().
inline Tensor random_uniform(const Shape& shape, NoRandomKey, double low = 0.0, double high = 1.0,
                             DType dtype = DType::kFloat32, Device device = current_device()) {
  return random_uniform(shape, next_random_key(), low, high, dtype, device);
}
/// Same as random_normal() with next_random_key().
inline Tensor random_normal(const Shape& shape, NoRandomKey, double mean = 0.0, double stddev = 1.0,
                            DType dtype = DType::kFloat32, Device device = current_device()) {
  return random_normal(shape, next_random_key(), mean, stddev, dtype, device);
}
/// Same as truncated_normal() with next_random_key().
inline Tensor truncated_normal(const Shape& shape, NoRandomKey, double mean = 0.0,
                               double stddev = 1.0, DType dtype = DType::kFloat32,
                               Device device = current_device()) {
  return truncated_normal(shape, next_random_key(), mean, stddev, dtype, device);
}

/// Return elements `first`, `first` + 1, ... of the tensors that random_uniform(), random_normal()
/// and truncated_normal() return. They are bit-identical to the same elements of a full tensor,
/// because no element depends on the tensor's size.
Tensor random_uniform_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                           double low, double high, DType dtype = DType::kFloat32,
                           Device device = current_device());
Tensor random_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                          double mean, double stddev, DType dtype = DType::kFloat32,
                          Device device = current_device());
Tensor truncated_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                             double mean, double stddev, DType dtype = DType::kFloat32,
                             Device device = current_device());

/// Sets each element of x to 0 with probability `rate` in [0, 1), and otherwise to x / (1 - rate).
/// The mask depends only on `key` and the element's index, so the gradient is dropout() of dy with
/// the same key.
Tensor dropout(const Operand& x, double rate, const RandomKey& key);
inline Tensor dropout(const Operand& x, double rate, NoRandomKey) {
  return dropout(x, rate, next_random_key());
}

/// Draws `count` classes per row with the probabilities softmax(logits): logits [batch, classes],
/// floating-point -> int64 [batch, count]. Corresponds to tf.random.categorical.
Tensor random_categorical(const Operand& logits, std::int64_t count,
                          const RandomKey& key = next_random_key());
inline Tensor random_categorical(const Operand& logits, std::int64_t count, NoRandomKey) {
  return random_categorical(logits, count, next_random_key());
}

}  // namespace tutti
