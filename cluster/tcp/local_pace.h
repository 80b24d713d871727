// Connections within a machine send without pauses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::internal {

/// Where the system's congestion control is `bbr`, it spaces out what a connection sends, also
/// between processes of one machine, where nothing is congested: a message then comes in many small
/// parts, each of which wakes its reader. A connection whose two ends have the same address gets
/// `reno` instead, which every system has and nobody needs a right for. Other connections, and
/// other congestion controls, stay as the system chose. Threads: any.
void send_without_pauses_if_local(int socket);

/// The same for connections of a library that shows no sockets: those of this process with `port`
/// at one end.
void send_without_pauses_if_local_at(int port);

}  // namespace tutti::internal
