// Per-thread state of tutti/core/random.h: the number of random draws, and the numbering of layers
// and variables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti::internal {

/// Returns the number of random draws by this thread: its calls to current_random_context(),
/// next_call_ordinal() and note_random_step().
std::uint64_t num_random_draws();
/// Increments num_random_draws(). Called at the end of a training step, because the next step uses
/// different random numbers.
void note_random_step();

/// Scope in which this thread's next_layer_number() and next_variable_number() count from 0, so
/// that a function that creates layers gives them the same numbers each time, independently of
/// other threads. Does not nest.
class NumbersFromZero {
 public:
  NumbersFromZero();
  ~NumbersFromZero();
  NumbersFromZero& operator=(NumbersFromZero&&) = delete;

  std::uint64_t next_layer = 0;
  std::uint64_t next_variable = 0;
};

}  // namespace tutti::internal
