// Per-thread counters of include/tutti/core/random.h: draws, and numbers of layers and variables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti::internal {

/// Returns how often this thread has asked for current_random_context() or next_call_ordinal(), of
/// which random keys are made, or called note_random_step().
std::uint64_t num_random_draws();
/// Counts as a draw: an optimizer ends a training step, whose successor has other random numbers.
void note_random_step();

/// While it lives next_layer_number() and next_variable_number() of this thread count from 0: a
/// function that makes layers makes the same ones each time, whatever other threads make. Not
/// nested.
class NumbersFromZero {
 public:
  NumbersFromZero();
  ~NumbersFromZero();
  NumbersFromZero& operator=(NumbersFromZero&&) = delete;

  std::uint64_t next_layer = 0;
  std::uint64_t next_variable = 0;
};

}  // namespace tutti::internal
