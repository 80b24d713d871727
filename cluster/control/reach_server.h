// Reaching a server of the job at first: attempt after attempt, until it is there or waiting is no
// remedy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "cluster/grpc/grpc_channel.h"
#include "tutti/core/clock.h"

namespace tutti::internal {

/// The server, and the words for messages about reaching it.
struct ServerToReach {
  std::string who;         // "control: worker 0"
  std::string wants;       // "join at 127.0.0.1:4711", "call ps 1 (127.0.0.1:4711)"
  std::string name;        // "the control server at 127.0.0.1:4711"
  std::string address_in;  // what to correct where the address is wrong: "TUTTI_CONTROL"
  Duration timeout;
  Duration say_every;
};

/// Returns when `attempt` is done; it gets the last moment to wait for. Meanwhile a line every
/// `say_every` says what is waited for. Throws kFailedPrecondition when the server refuses, or
/// belongs to another job; kUnavailable within seconds where this machine cannot reach the address,
/// however long it waits; kDeadlineExceeded.
void reach_server(const ServerToReach& server,
                  const std::function<ConnectAttempt(TimePoint deadline)>& attempt);

}  // namespace tutti::internal
