// Timeouts and intervals for communication between the processes of a job, each with its reason.
// SPDX-License-Identifier: Apache-2.0
//
// Durations that do not involve a network are in tutti/cross_device_ops/rank_durations.h. User
// options take their defaults from here; the options' comments explain the durations to the user.
#pragma once

#include <chrono>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::durations {

// Durations for connecting to a process that may not have started yet.

/// Interval between log lines about a wait; users must see the first line within 5 s. Also the
/// interval between lines about refused connections, so that unauthenticated peers cannot fill the
/// disk.
inline constexpr Duration kSayAgainEvery = std::chrono::milliseconds(4500);
/// Grace period for unreachable addresses: interfaces or routes may be missing just after booting.
inline constexpr Duration kHopelessLongEnough = std::chrono::seconds(10);
/// First polling interval for stores without notifications.
inline constexpr Duration kStorePause = std::chrono::milliseconds(1);

// Monitoring of a job's members; see HealthOptions.

/// Interval between the heartbeats of a member.
inline constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(250);
/// Timeout for the reply to a handshake, for the agreement on the step at which a job stops, for a
/// heartbeat from a member that may be stopped, and for a task that may have lost its state.
/// Replies take milliseconds; several lost packets in a row delay them by a second.
inline constexpr Duration kSilentAfter = std::chrono::seconds(2);
/// Timeout after which a silent member, a client whose call stream broke, or a new connection that
/// has not authenticated itself counts as lost.
inline constexpr Duration kUnreachableAfter = std::chrono::seconds(5);
/// Time after which a member on another machine counts as dead if its connection was closed and it
/// has not opened a new one; the same applies to a server whose port refuses connections. A process
/// that exits closes its connections, whereas a silent link leaves them open. Also the minimum
/// handshake timeout.
inline constexpr Duration kReconnectWithin = std::chrono::milliseconds(150);
/// Time after which members that wait for each other in different collectives count as deadlocked,
/// which is a fatal error. Long enough that even a busy machine enters a call that the program has
/// issued.
inline constexpr Duration kAbortDeadlockAfter = std::chrono::seconds(1);
/// Time for which members wait in a collective for a missing member before the wait becomes fatal.
inline constexpr Duration kAbortStuckAfter = std::chrono::minutes(1);
/// Time limit for one training step of workers whose collectives have their own deadlines.
inline constexpr Duration kLongestStep = std::chrono::minutes(10);

// Calls and shutdown.

/// Timeout for one call to the job's control server, which answers immediately unless it is lost.
inline constexpr Duration kServerPatience = std::chrono::seconds(30);
/// Timeout for one attempt at an action that is retried or has a fallback, such as reporting a
/// failed member, reconnecting in a loop, or writing a checkpoint after a disk error.
inline constexpr Duration kOneTry = std::chrono::seconds(1);

// Transfers between ranks.

/// Time that a waiting thread spins before it sleeps: about as long as waking it would take.
inline constexpr Duration kSpin = std::chrono::microseconds(100);
/// Time for which a thread that may not spin yields before it sleeps. An idle core takes longer
/// than this to wake. A transfer of 1 KiB between 4 ranks on 2 cores takes 145 us without yielding,
/// 58 us with yielding for 20 us, and up to 100 us with yielding for 100 us.
inline constexpr Duration kYield = std::chrono::microseconds(20);
/// Time without acknowledgements after which a link counts as broken. On a fast link, the system
/// retransmits after 0.2, 0.6, 1.4, 3 and 6.2 s. A link that is silent for 3 to 6 s is therefore
/// known to work again only after 6.2 s. Links are checked seven times per period.
inline constexpr Duration kLinkSilence = std::chrono::seconds(7);

}  // namespace tutti::durations
