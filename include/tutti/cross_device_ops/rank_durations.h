// Limits on how long ranks wait for each other, independent of the transport.
// SPDX-License-Identifier: Apache-2.0
//
// Defaults of user options refer to these constants; the options document their meaning.
#pragma once

#include <chrono>

#include "tutti/core/clock.h"

namespace tutti::durations {

/// Time limit for all ranks to join. Schedulers start the tasks of a job within minutes of each
/// other.
inline constexpr Duration kJoinTimeout = std::chrono::minutes(5);
/// Polling interval for an event that is expected soon. Examples: a process starts to listen, a
/// file descriptor becomes free, a lost connection is restored, a peer in shared memory exits, or a
/// member stops responding.
inline constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// Time for which a finished rank waits for slower peers. Examples: a peer is still receiving a
/// long message that precedes the final one, or its kernel has not acknowledged all bytes; ranks
/// have yet to reach a call that one of them refuses; MPI, or the rank that closes a group, still
/// uses the memory of an abandoned call. A server waits this long for clients that are about to
/// leave.
inline constexpr Duration kLinger = std::chrono::seconds(2);
/// Time limit for messages that no operation waits for. Examples: the final message to a peer that
/// may have stopped reading; a report of mismatched calls that a peer may never send.
inline constexpr Duration kLastWords = std::chrono::milliseconds(200);

}  // namespace tutti::durations
