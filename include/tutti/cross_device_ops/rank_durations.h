// How long ranks wait for each other, each with its reason, whatever carries their messages.
// SPDX-License-Identifier: Apache-2.0
//
// Options that users set take their defaults from here; what they mean for a user stands there.
#pragma once

#include <chrono>

#include "tutti/core/clock.h"

namespace tutti::durations {

/// For all to be there: schedulers start the tasks of a job within minutes.
inline constexpr Duration kJoinTimeout = std::chrono::minutes(5);
/// Between two looks at what others do at once, once they are there: that a process listens, a
/// descriptor is free, a connection that is away has come back, a peer in memory has ended, a
/// member has fallen silent.
inline constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// For those who are behind, to come to the same end: a peer that takes what is said last, with a
/// long message in front of it, and its system to have all; ranks to come to a call that one of
/// them refuses; MPI, or the rank that closes a group, to finish with the memory of a call that was
/// given up. A server waits so long for those that are about to leave.
inline constexpr Duration kLinger = std::chrono::seconds(2);
/// For messages that are under way when nothing else waits for them: a peer that takes nothing of
/// what is said last, one that may still say that calls differ.
inline constexpr Duration kLastWords = std::chrono::milliseconds(200);

}  // namespace tutti::durations
