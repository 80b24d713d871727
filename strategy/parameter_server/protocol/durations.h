// How long tasks of a job with parameter servers wait for each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/clock.h"

namespace tutti::internal {

/// Of what comes anyway, or is tried again: by a link's thread, which must not stay long when the
/// coordinator ends; by a disk that refused a cut.
inline constexpr Duration kOneTry = std::chrono::milliseconds(500);
/// A broken connection to a server that took its variables along: nobody starts this step again.
/// Also for an answer of a task that may be gone.
inline constexpr Duration kServerPatience = std::chrono::seconds(2);
/// A broken connection while the worker lives; a dead one the job knows at once.
inline constexpr Duration kWorkerPatience = std::chrono::seconds(10);
/// For a task that is greeted, or a server that is to come back, or saves: what waits for it has
/// deadlines of its own, and a dead one the connection tells, and the job.
inline constexpr Duration kDurableServerPatience = std::chrono::seconds(300);

}  // namespace tutti::internal
