// ValueGenerator: initial values that each process can generate for just the rows that it stores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Distribution of a variable's initial values. Element i depends only on (key, i), so it is
/// bit-identical for any partition into shards.
struct ValueGenerator {
  enum class Kind { kConstant, kUniform, kNormal, kTruncatedNormal, kIdentity };
  Kind kind = Kind::kConstant;
  double a = 0.0;  // constant, lower bound, mean, or gain (kIdentity)
  double b = 0.0;  // upper bound (kUniform) or standard deviation
  RandomKey key = {};
  DType dtype = DType::kFloat32;
  Shape shape = {};  // shape of the full variable

  /// Returns rows [first, first + count), of shape [count, shape[1:]], on current_device(). A
  /// scalar counts as one row.
  Tensor rows(std::int64_t first, std::int64_t count) const;
  bool operator==(const ValueGenerator&) const = default;
};

/// Returns an initializer that fills a whole variable with the generator's values for the
/// variable's own key. Initializer::for_shape() (model/layers) returns such initializers.
Variable::Initializer generated_initializer(ValueGenerator without_key);
/// For an initializer that generated_initializer() created, returns its generator with the
/// variable's key; nullopt for any other initializer, which the caller must call instead.
std::optional<ValueGenerator> generator_of(const Variable::Initializer& initializer,
                                           const RandomKey& key);

}  // namespace tutti
