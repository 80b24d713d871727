// Joining a job as one of its tasks, and choosing the process that hosts the control server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"
#include "cluster/net/socket.h"
#include "tutti/cluster/control/join_options.h"

namespace tutti {

class Communicator;

struct ControlPlane {
  std::unique_ptr<ControlServer> server;  // null unless this process hosts it; outlives the client
  std::unique_ptr<ControlClient> client;
  /// Secret for connections between the members, from the options or the environment.
  JobSecret secret = {};
  std::string job_id = {};
};

namespace internal {
/// Parses "grpc://127.0.0.1:4711". Throws kInvalidArgument, with `who` first in the message, for
/// any other string.
Endpoint parse_grpc_target(std::string_view who, const std::string& text);
/// Returns the same number in all processes that can reach each other at 127.0.0.1.
std::int64_t number_of_this_machine();
/// Overload for tests, with `machine` in place of number_of_this_machine().
ControlPlane connect_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                         const JoinOptions& options, std::int64_t machine);
}  // namespace internal

/// Joins the job as tasks[self]. The server is at TUTTI_CONTROL; if that is unset, the first task
/// (the chief, or worker 0) hosts it at its own address. Reads TUTTI_JOB_SECRET_FILE, TUTTI_JOB_ID
/// and TUTTI_RESTART. Throws the same errors as ControlServer::start() and connect_control().
ControlPlane join_job(const std::vector<MemberTask>& tasks, std::size_t self,
                      const JoinOptions& options = {});

/// Collective. Same as join_job(), but for tasks that can communicate before they know each other's
/// addresses, such as the ranks of an MPI job; task i is rank i of `communicator`. Task 0 hosts the
/// server at the address in its TUTTI_CONTROL, which must be an address of its machine. If
/// TUTTI_CONTROL is unset and all tasks are on one machine, task 0 uses a free port of the loopback
/// interface. If it is unset, and the tasks are on several machines or the build has no gRPC, there
/// is no server: task 0 logs a warning, and `client` is null on all tasks. Task 0 broadcasts the
/// address, and a new secret unless the environment or `options` provide one. Returns when all
/// tasks have joined. Throws the same errors as join_job(). If task 0 cannot host the server,
/// throws kUnavailable with task 0's reason on all tasks.
ControlPlane connect_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                         const JoinOptions& options = {});

}  // namespace tutti
