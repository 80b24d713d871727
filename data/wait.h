// Waiting for a data thread: long, but not for ever and not in silence.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "tutti/core/sync.h"

namespace tutti::internal {

/// Waits until ready(). Every minute without it logs a warning naming `who`; after half an hour
/// throws kDeadlineExceeded: the function that should yield an element hangs. `mutex` is held by
/// the caller.
void wait_for_input(CondVar& condition, Mutex& mutex, std::string_view who,
                    const std::function<bool()>& ready) TUTTI_REQUIRES(mutex);

/// Waits until ready(), however long: a data thread that has nothing to do until its consumer comes
/// back or stops it.
void wait_for_work(CondVar& condition, Mutex& mutex, const std::function<bool()>& ready)
    TUTTI_REQUIRES(mutex);

}  // namespace tutti::internal
