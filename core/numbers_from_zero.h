// The numbers that a thread gives to layers and variables, from 0 on while an object lives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti::internal {

/// While it lives next_layer_number() and next_variable_number() of this thread count from 0: a
/// function that makes layers makes the same ones each time, whatever other threads make. Not
/// nested.
class NumbersFromZero {
 public:
  NumbersFromZero();
  ~NumbersFromZero();
  NumbersFromZero(const NumbersFromZero&) = delete;
  NumbersFromZero& operator=(const NumbersFromZero&) = delete;

  std::uint64_t next_layer = 0;
  std::uint64_t next_variable = 0;
};

}  // namespace tutti::internal
