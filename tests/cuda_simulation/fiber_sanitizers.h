// Tells AddressSanitizer and ThreadSanitizer when a thread goes on with another stack.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tests/support/sanitizers.h"

#if defined(TUTTI_UNDER_ASAN)
#include <sanitizer/common_interface_defs.h>
#elif defined(TUTTI_UNDER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// ThreadSanitizer counts calls and returns of each stack: a function in which one stack is left and
// another is entered must not be counted.
#define TUTTI_SWITCHES_STACKS inline __attribute__((always_inline))
#if defined(TUTTI_UNDER_TSAN) && defined(__clang__)  // no_sanitize_thread would leave the counting
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK __attribute__((disable_sanitizer_instrumentation))
#elif defined(TUTTI_UNDER_TSAN)
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK __attribute__((no_sanitize_thread))
#else
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK
#endif

namespace tutti::cuda_simulation {

/// What the sanitizers know of one stack. Does nothing without them.
class StackForSanitizers {
 public:
  StackForSanitizers() = default;
  StackForSanitizers(const void* bottom, std::size_t bytes) : bottom_(bottom), bytes_(bytes) {
#if defined(TUTTI_UNDER_TSAN)
    fiber_ = __tsan_create_fiber(0);
#endif
  }

  /// Just before the context is switched from this stack to `next`.
  TUTTI_SWITCHES_STACKS void leave_to([[maybe_unused]] const StackForSanitizers& next) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_start_switch_fiber(&fake_, next.bottom_, next.bytes_);
#elif defined(TUTTI_UNDER_TSAN)
    if (!fiber_) fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(next.fiber_, 0);
#endif
  }
  /// Just after it was switched back here, or here for the first time. `from`: where it came from.
  void arrive([[maybe_unused]] StackForSanitizers& from) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_finish_switch_fiber(fake_, &from.bottom_, &from.bytes_);
#endif
  }
  /// Instead of leave_to() when nothing comes back; ends what the constructor with a stack began.
  TUTTI_SWITCHES_STACKS void end_to([[maybe_unused]] const StackForSanitizers& next) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_start_switch_fiber(nullptr, next.bottom_, next.bytes_);
#elif defined(TUTTI_UNDER_TSAN)
    __tsan_switch_to_fiber(next.fiber_, 0);
#endif
  }
  /// Once the stack is no longer in use.
  void forget() {
#if defined(TUTTI_UNDER_TSAN)
    if (fiber_) __tsan_destroy_fiber(fiber_);
    fiber_ = nullptr;
#endif
  }

 private:
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] std::size_t bytes_ = 0;
  [[maybe_unused]] void* fake_ = nullptr;
  [[maybe_unused]] void* fiber_ = nullptr;
};

}  // namespace tutti::cuda_simulation
