// From a task's place in the cluster to its place in the job: who hosts the control server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/control/control_client.h"
#include "tutti/cluster/control/control_server.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/cluster/net/socket.h"

namespace tutti {

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
/// What TUTTI_CONTROL says; "": nothing.
std::string asked_control_target();
/// kInvalidArgument where there is no tasks[self].
void check_task(const std::vector<MemberTask>& tasks, std::size_t self);
/// `options.client` with what the environment adds to it.
ControlOptions control_options(const JoinOptions& options);
/// In the process of the first task.
std::unique_ptr<ControlServer> host_control_server(const std::vector<MemberTask>& tasks,
                                                   const std::string& address,
                                                   const JoinOptions& options,
                                                   const ControlOptions& client);
}  // namespace internal

/// Joins the job as tasks[self]. The server is where TUTTI_CONTROL says; without it the first task
/// (the chief, or worker 0) hosts it at its own address and the others find it there. Reads
/// TUTTI_JOB_SECRET_FILE, TUTTI_JOB_ID and TUTTI_RESTART. Throws as ControlServer::start() and
/// connect_control().
ControlPlane join_job(const std::vector<MemberTask>& tasks, std::size_t self,
                      const JoinOptions& options = {});

}  // namespace tutti
