// Lock annotations for clang's thread-safety analysis; empty for other compilers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__clang__)
#define TUTTI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TUTTI_THREAD_ANNOTATION(x)
#endif

/// This member may only be touched while `mutex` is held.
#define TUTTI_GUARDED_BY(mutex) TUTTI_THREAD_ANNOTATION(guarded_by(mutex))
/// The caller must hold `mutex`.
#define TUTTI_REQUIRES(...) TUTTI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
