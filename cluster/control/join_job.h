// From a task's place in the cluster to its place in the job: which process hosts the control
// server.
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
  std::unique_ptr<ControlServer> server;  // only where it is hosted; outlives the client
  std::unique_ptr<ControlClient> client;
  /// What the environment or the options gave, for connections between the members.
  JobSecret secret = {};
  std::string job_id = {};
};

namespace internal {
/// "grpc://127.0.0.1:4711". Throws kInvalidArgument for other texts; `who` begins the message.
Endpoint parse_grpc_target(std::string_view who, const std::string& text);
/// Equal for processes that reach each other at 127.0.0.1.
std::int64_t number_of_this_machine();
/// As if this task were on that machine.
ControlPlane meet_for_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                          const JoinOptions& options, std::int64_t machine);
}  // namespace internal

/// Joins the job as tasks[self]. The server is where TUTTI_CONTROL says; without it the first task
/// (the chief, or worker 0) hosts it at its own address and the others find it there. Reads
/// TUTTI_JOB_SECRET_FILE, TUTTI_JOB_ID and TUTTI_RESTART. Throws as ControlServer::start() and
/// connect_control().
ControlPlane join_job(const std::vector<MemberTask>& tasks, std::size_t self,
                      const JoinOptions& options = {});

/// join_job() for tasks that can talk to each other before they know where the others are, as the
/// ranks of an MPI job can; task i is rank i of `communicator`. Task 0 hosts the server: where its
/// TUTTI_CONTROL says, which is then an address of its machine; without that at a free port of the
/// loopback interface, if all tasks are on one machine. It tells the others where, and a new secret
/// unless the environment or `options` give one. Called by all; returns when all have joined.
/// Across machines without TUTTI_CONTROL nobody hosts it: task 0 says so in a line, and `client` is
/// nullptr on all. Throws as join_job(); kUnavailable on all tasks, naming task 0 and its reason,
/// when it cannot host.
ControlPlane meet_for_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                          const JoinOptions& options = {});

}  // namespace tutti
