// How long the processes of a job wait for each other, each with its reason.
// SPDX-License-Identifier: Apache-2.0
//
// Those that are the same without a network stand in tutti/cross_device_ops/rank_durations.h.
// Options that users set take their defaults from here; what they mean for a user stands there.
#pragma once

#include <chrono>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::durations {

// Reaching a process that may not have begun yet.

/// A line that says what is waited for is to come within 5 s; those about connections that were
/// refused come no more often, for unauthenticated peers must not fill the disk.
inline constexpr Duration kSayAgainEvery = std::chrono::milliseconds(4500);
/// Interfaces, routes and name servers of a machine that has just started may come a little later.
inline constexpr Duration kHopelessLongEnough = std::chrono::seconds(10);
/// Stores without notifications are asked again.
inline constexpr Duration kStorePause = std::chrono::milliseconds(1);

// Watching the members of a job: HealthOptions says more.

/// How often a member says that it lives.
inline constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(250);
/// A member without a heartbeat, one that does not acknowledge the step to stop at, a peer that
/// does not answer a handshake, and a task that may be gone with what it had: answers take
/// milliseconds, packets lost in a row delay them by a second.
inline constexpr Duration kSilentAfter = std::chrono::seconds(2);
/// Also a client of calls whose stream broke: it has left. And a new connection that has not
/// authenticated itself.
inline constexpr Duration kUnreachableAfter = std::chrono::seconds(5);
/// On another machine a connection that closed, and none opened anew, or a server whose port
/// refuses connections: dead. The system closes the connections of a process that ends; silence
/// closes none. Less is not enough for a handshake, however little time is left.
inline constexpr Duration kReconnectWithin = std::chrono::milliseconds(150);
/// Members wait for each other, each in another collective: fatal. Longer than a busy machine needs
/// to begin a call that the program has started.
inline constexpr Duration kAbortDeadlockAfter = std::chrono::seconds(1);
inline constexpr Duration kAbortStuckAfter = std::chrono::minutes(1);
/// The longest training step, for workers whose collectives have deadlines of their own.
inline constexpr Duration kLongestStep = std::chrono::minutes(10);

// Calls, and their end.

/// Timeout for one call of the job's control server, which answers at once or is lost long before.
inline constexpr Duration kServerPatience = std::chrono::seconds(30);
/// For what comes in another way, too, or is tried again: a report that a member has failed or
/// left, the exit status of one that is ending, a connection that a thread makes again and again, a
/// cut that a disk refused.
inline constexpr Duration kOneTry = std::chrono::seconds(1);

// Bytes between ranks.

/// Waking a sleeping thread costs about as much.
inline constexpr Duration kSpin = std::chrono::microseconds(100);
/// A core that nobody wants goes to sleep, and takes longer to wake than this (measured with 4
/// ranks on 2 cores: 1 KiB 145 us without, 58 us with 20, up to 100 us with 100).
inline constexpr Duration kYield = std::chrono::microseconds(20);
/// The system repeats what was not acknowledged after 0.2 s, 0.6, 1.4, 3 and 6.2 (where a packet
/// takes little): a link that was silent for 3 to 6 s is known to be back only then. Looked for
/// once in a seventh of it.
inline constexpr Duration kLinkSilence = std::chrono::seconds(7);

}  // namespace tutti::durations
