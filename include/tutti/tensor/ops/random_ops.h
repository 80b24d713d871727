// Random tensors: pure functions of a key (tutti/core/random.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "tutti/core/random.h"
#include "tutti/tensor/op.h"

namespace tutti {

/// A key that no other call of this replica and step has, of the global seed, the step and the
/// replica (set_random_seed()): what random tensors are made of where no key is given. The same
/// calls in the same order give the same numbers again. In a captured step random tensors throw,
/// with any key.
RandomKey next_random_key();

/// Uniform in [low, high). Element i depends on the key and i alone. A floating dtype.
Tensor random_uniform(const Shape& shape, const RandomKey& key = next_random_key(),
                      double low = 0.0, double high = 1.0, DType dtype = DType::kFloat32,
                      Device device = current_device());
/// Normal with this mean and standard deviation, keyed in the same way.
Tensor random_normal(const Shape& shape, const RandomKey& key = next_random_key(),
                     double mean = 0.0, double stddev = 1.0, DType dtype = DType::kFloat32,
                     Device device = current_device());
/// Normal, values beyond two standard deviations drawn again.
Tensor truncated_normal(const Shape& shape, const RandomKey& key = next_random_key(),
                        double mean = 0.0, double stddev = 1.0, DType dtype = DType::kFloat32,
                        Device device = current_device());

namespace internal {
struct Nothing {};
}  // namespace internal
/// The type of `{}` in the place of a key. A key without fields is no key: the overloads below draw
/// from next_random_key(), as calls without the argument do. `RandomKey{}` is a key.
using NoRandomKey = std::initializer_list<internal::Nothing>;
/// Same as random_uniform() with a fresh key.
inline Tensor random_uniform(const Shape& shape, NoRandomKey, double low = 0.0, double high = 1.0,
                             DType dtype = DType::kFloat32, Device device = current_device()) {
  return random_uniform(shape, next_random_key(), low, high, dtype, device);
}
/// Same as random_normal() with a fresh key.
inline Tensor random_normal(const Shape& shape, NoRandomKey, double mean = 0.0, double stddev = 1.0,
                            DType dtype = DType::kFloat32, Device device = current_device()) {
  return random_normal(shape, next_random_key(), mean, stddev, dtype, device);
}
/// Same as truncated_normal() with a fresh key.
inline Tensor truncated_normal(const Shape& shape, NoRandomKey, double mean = 0.0,
                               double stddev = 1.0, DType dtype = DType::kFloat32,
                               Device device = current_device()) {
  return truncated_normal(shape, next_random_key(), mean, stddev, dtype, device);
}

/// Elements first, first + 1, ... of the tensors above, whatever size these have: a part gives the
/// bits of the whole.
Tensor random_uniform_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                           double low, double high, DType dtype = DType::kFloat32,
                           Device device = current_device());
Tensor random_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                          double mean, double stddev, DType dtype = DType::kFloat32,
                          Device device = current_device());
Tensor truncated_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                             double mean, double stddev, DType dtype = DType::kFloat32,
                             Device device = current_device());

/// Each element is 0 with probability `rate`, else x / (1 - rate). The mask is a function of `key`
/// and the element's index, so the gradient is dropout of dy with the same key. rate in [0, 1).
Tensor dropout(const Operand& x, double rate, const RandomKey& key);
inline Tensor dropout(const Operand& x, double rate, NoRandomKey) {
  return dropout(x, rate, next_random_key());
}

/// int64 [batch, count]: classes drawn with the probabilities softmax(logits), logits [batch,
/// classes], floating. tf.random.categorical.
Tensor random_categorical(const Operand& logits, std::int64_t count,
                          const RandomKey& key = next_random_key());
inline Tensor random_categorical(const Operand& logits, std::int64_t count, NoRandomKey) {
  return random_categorical(logits, count, next_random_key());
}

}  // namespace tutti
