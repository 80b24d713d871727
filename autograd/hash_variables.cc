// The hash of a model's weights.
// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "tutti/autograd/variable.h"
#include "tutti/core/hash.h"

namespace tutti {

static_assert(std::endian::native == std::endian::little,
              "hashes and checkpoints hold little-endian values");

std::string hash_variables(std::span<const Variable> variables) {
  constexpr std::string_view kEnd("\0", 1);
  Hasher hasher;
  for (const Variable& variable : variables) {
    const Tensor value = variable.storage().read().to(Device{});
    hasher.update(variable.name());
    hasher.update(kEnd);
    hasher.update(to_string(value.dtype()));
    hasher.update(kEnd);
    hasher.update(value.shape().to_string());
    hasher.update(kEnd);
    hasher.update(value.bytes());
  }
  return hasher.hex_digest();
}

}  // namespace tutti
