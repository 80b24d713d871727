// How long tasks of a job with parameter servers wait for each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/clock.h"

namespace tutti::internal {

/// A line says what is waited for, before somebody who has waited for 5 s looks for one.
inline constexpr Duration kSayEvery = std::chrono::milliseconds(4500);
/// A warning of a worker or server that is simply not there.
inline constexpr Duration kComplainEvery = std::chrono::seconds(30);
/// To connect, where the link's thread tries again: it must not stay long when the coordinator
/// ends.
inline constexpr Duration kOneTry = std::chrono::milliseconds(500);
/// A broken connection to a server that took its variables along: nobody starts this step again. So
/// long is also waited for an answer of who may be gone.
inline constexpr Duration kServerPatience = std::chrono::seconds(2);
/// A broken connection while the worker lives; a dead one the job knows at once.
inline constexpr Duration kWorkerPatience = std::chrono::seconds(10);
/// For a server that is to come back, or saves: what waits for it has deadlines of its own, and a
/// dead one the connection tells, and the job.
inline constexpr Duration kDurableServerPatience = std::chrono::seconds(300);
/// For a worker to say whether it has begun: its own answer comes anyway.
inline constexpr Duration kRecallPatience = std::chrono::seconds(5);
/// Whether the connection to a server is another one: then somebody else may answer.
inline constexpr Duration kGlanceEvery = std::chrono::milliseconds(10);
/// After a server's life, before the next one is looked for.
inline constexpr Duration kBetweenLives = std::chrono::milliseconds(2);
/// A disk that refused a cut is asked again.
inline constexpr Duration kTryCutAgainAfter = std::chrono::seconds(1);
/// For a first closure that ended after the time of a cut: nobody tells of it.
inline constexpr Duration kLookForCutEvery = std::chrono::milliseconds(100);

}  // namespace tutti::internal
