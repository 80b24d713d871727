// ValueGenerator: initial values that the holder of any rows of a variable can generate there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

/// A distribution whose element i depends only on (key, i), so that shards of a variable have the
/// same bits for any partition. A value type.
struct ValueGenerator {
  enum class Kind { kConstant, kUniform, kNormal, kTruncatedNormal, kIdentity };
  Kind kind = Kind::kConstant;
  double a = 0.0;  // constant; lower bound; mean; gain of kIdentity
  double b = 0.0;  // upper bound (kUniform); standard deviation
  RandomKey key = {};
  DType dtype = DType::kFloat32;
  Shape shape = {};  // of the whole variable

  /// Returns rows `first` to `first + count` (of a scalar: 0 and 1) on the CPU: [count, shape[1:]].
  Tensor rows(std::int64_t first, std::int64_t count) const;
  bool operator==(const ValueGenerator&) const = default;
};

/// Returns an initializer with the generator's values for a variable's own key, as Initializer
/// (model/layers) returns for these distributions. The initializer makes the whole variable.
Variable::Initializer generated_initializer(ValueGenerator without_key);
/// Returns the generator of an initializer from generated_initializer(), with the variable's key;
/// nullopt for other functions, which must be called.
std::optional<ValueGenerator> generator_of(const Variable::Initializer& initializer,
                                           const RandomKey& key);

}  // namespace tutti
