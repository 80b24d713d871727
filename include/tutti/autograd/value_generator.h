// Initial values as a description: whoever holds some rows of a variable makes them there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

/// A distribution of which element i depends on (key, i) alone: any cut of a variable into shards
/// gives the same bits. A value.
struct ValueGenerator {
  enum class Kind { kConstant, kUniform, kNormal, kTruncatedNormal, kIdentity };
  Kind kind = Kind::kConstant;
  double a = 0.0;  // the constant; low; mean; the gain of kIdentity
  double b = 0.0;  // high (kUniform); standard deviation
  RandomKey key = {};
  DType dtype = DType::kFloat32;
  Shape shape = {};  // of the whole variable

  /// Rows `first` to `first + count` (a scalar: 0 and 1), on the CPU: [count, shape[1:]].
  Tensor rows(std::int64_t first, std::int64_t count) const;
  bool operator==(const ValueGenerator&) const = default;
};

/// An initializer whose values are those of a generator, for any variable: what Initializer
/// (model/layers) gives for the distributions above. Throws nothing; makes the whole variable when
/// it is called.
Variable::Initializer generated_initializer(ValueGenerator without_key);
/// The generator of an initializer that generated_initializer() made, with the variable's key;
/// nothing for other functions, which must be called.
std::optional<ValueGenerator> generator_of(const Variable::Initializer& initializer,
                                           const RandomKey& key);

}  // namespace tutti
