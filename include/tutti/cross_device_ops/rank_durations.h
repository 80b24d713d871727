// Durations for which ranks wait for each other, independent of the transport.
// SPDX-License-Identifier: Apache-2.0
//
// Defaults of user options refer to these constants; the options document their meaning.
#pragma once

#include <chrono>

#include "tutti/core/clock.h"

namespace tutti::durations {

/// Time for all ranks to join: schedulers start the tasks of a job within minutes.
inline constexpr Duration kJoinTimeout = std::chrono::minutes(5);
/// Interval between two checks of an event that takes little time once all ranks have joined: a
/// process listens, a descriptor is free, a lost connection is back, a peer in shared memory has
/// exited, a member has stopped responding.
inline constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// Time for slower peers to reach the same end. Examples: a peer that is still receiving a long
/// message before the final one, and its kernel acknowledging all; ranks that have yet to reach a
/// call that one of them refuses; MPI, or the rank that closes a group, finishing with the memory
/// of an abandoned call. A server waits this long for clients that are about to leave.
inline constexpr Duration kLinger = std::chrono::seconds(2);
/// Time for messages in flight that no other operation waits for: to a peer that does not receive
/// the final message, or from one that may still report that calls differ.
inline constexpr Duration kLastWords = std::chrono::milliseconds(200);

}  // namespace tutti::durations
