// How long the processes of a job wait for each other, each with its reason.
// SPDX-License-Identifier: Apache-2.0
//
// Options that users set take their defaults from here; what they mean for a user stands there.
#pragma once

#include <chrono>

#include "tutti/core/clock.h"

namespace tutti::durations {

// Reaching a process that may not have begun yet.

/// Schedulers start the tasks of a job within minutes.
inline constexpr Duration kJoinTimeout = std::chrono::minutes(5);
/// A line that says what is waited for is to come within 5 s.
inline constexpr Duration kSayAgainEvery = std::chrono::milliseconds(4500);
/// Between two looks at what others do at once, once they are there.
inline constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// As long as it takes to start a process on a busy machine; then more rarely.
inline constexpr Duration kTryOftenFor = std::chrono::seconds(3);
inline constexpr Duration kTryMuchLater = std::chrono::milliseconds(250);
/// A handshake takes milliseconds; packets lost in a row delay it by a second.
inline constexpr Duration kLongestAttempt = std::chrono::seconds(2);
/// Less is not enough for a handshake, however little time is left.
inline constexpr Duration kShortestAttempt = std::chrono::milliseconds(50);
/// Interfaces, routes and name servers of a machine that has just started may come a little later.
inline constexpr Duration kHopelessLongEnough = std::chrono::seconds(10);
/// A connection that says nothing for so long is a stranger's.
inline constexpr Duration kOpensWithin = std::chrono::seconds(5);
/// A process without free descriptors looks again for one.
inline constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);
/// Stores without notifications are asked again.
inline constexpr Duration kStorePause = std::chrono::milliseconds(1);

// Watching the members of a job: HealthOptions says more.

inline constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(250);
inline constexpr Duration kSilentAfter = std::chrono::seconds(2);
/// Also a client of calls whose stream broke: it has left.
inline constexpr Duration kUnreachableAfter = std::chrono::seconds(5);
/// On another machine a connection that closed, and none opened anew, or a server whose port
/// refuses connections: dead. The system closes the connections of a process that ends; silence
/// closes none.
inline constexpr Duration kReconnectWithin = std::chrono::milliseconds(150);
/// Members wait for each other, each in another collective: fatal. Longer than a busy machine needs
/// to begin a call that the program has started.
inline constexpr Duration kAbortDeadlockAfter = std::chrono::seconds(1);
inline constexpr Duration kAbortStuckAfter = std::chrono::minutes(1);
/// Members that do not acknowledge the step to stop at are not waited for any longer; a member
/// waits for the last word twice as long.
inline constexpr Duration kAcknowledgeWithin = std::chrono::seconds(2);
/// The longest training step, for workers whose collectives have deadlines of their own.
inline constexpr Duration kLongestStep = std::chrono::minutes(10);
/// How often a server judges its members: a tenth of what a death may take to be known, and more
/// often while a connection is away.
inline constexpr Duration kTick = std::chrono::milliseconds(50);
inline constexpr Duration kTickWhileOneIsAway = std::chrono::milliseconds(10);

// Calls, and their end.

/// A job's server answers at once, or it is lost long before this.
inline constexpr Duration kLongestAnswer = std::chrono::minutes(1);
/// A server of calls that was started again is back by then.
inline constexpr Duration kServerPatience = std::chrono::seconds(30);
/// For what the others learn in other ways, too, only later.
inline constexpr Duration kLongestReport = std::chrono::seconds(1);
/// For saying good-bye to a server of calls.
inline constexpr Duration kLongestGoodBye = std::chrono::milliseconds(500);
/// A server waits for those that are about to leave.
inline constexpr Duration kLinger = std::chrono::seconds(2);

}  // namespace tutti::durations
