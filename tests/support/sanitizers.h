// Detects the sanitizers of this build; g++ and clang++ define different macros for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__has_feature)  // clang++
#if __has_feature(address_sanitizer)
#define TUTTI_UNDER_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TUTTI_UNDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)  // g++
#define TUTTI_UNDER_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TUTTI_UNDER_TSAN 1
#endif

namespace tutti::testing {

#if defined(TUTTI_UNDER_ASAN) || defined(TUTTI_UNDER_TSAN)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace tutti::testing
