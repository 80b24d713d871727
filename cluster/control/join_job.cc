// Reading the environment, hosting the server where it belongs, joining.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/join_job.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::string_view kScheme = "grpc://";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::uint64_t restarts() {
  const std::string text = variable("TUTTI_RESTART");
  if (text.empty()) return 0;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  fail(ErrorCode::kInvalidArgument, "TUTTI_RESTART: expected a number, got '", text, "'");
}

}  // namespace

internal::Endpoint internal::parse_grpc_target(std::string_view who, const std::string& text) {
  if (text.starts_with(kScheme)) {
    if (const auto endpoint = parse_endpoint(text.substr(kScheme.size()))) return *endpoint;
  }
  fail(ErrorCode::kInvalidArgument, who, ": the target '", text,
       "'; expected grpc://host:port, for example grpc://127.0.0.1:4711");
}

std::string internal::asked_control_target() { return variable("TUTTI_CONTROL"); }

void internal::check_task(const std::vector<MemberTask>& tasks, std::size_t self) {
  if (self < tasks.size()) return;
  fail(ErrorCode::kInvalidArgument, "join_job: task ", self, " of ", tasks.size(),
       "; expected a number below");
}

ControlOptions internal::control_options(const JoinOptions& options) {
  ControlOptions client = options.client;
  if (client.job_id.empty()) client.job_id = variable("TUTTI_JOB_ID");
  if (!client.secret.is_set()) client.secret = JobSecret::from_environment();
  if (client.incarnation == 0) client.incarnation = restarts();
  return client;
}

std::unique_ptr<ControlServer> internal::host_control_server(const std::vector<MemberTask>& tasks,
                                                             const std::string& address,
                                                             const JoinOptions& options,
                                                             const ControlOptions& client) {
  ControlServerOptions server;
  server.address = address;
  server.job_id = client.job_id;
  server.secret = client.secret;
  server.tls = client.tls;
  server.allow_insecure_network = options.allow_insecure_network;
  server.expected = tasks;
  server.host = tasks.front();
  server.health = options.health;
  return ControlServer::start(server);
}

ControlPlane join_job(const std::vector<MemberTask>& tasks, std::size_t self,
                      const JoinOptions& options) {
  internal::check_task(tasks, self);
  ControlOptions client = internal::control_options(options);
  ControlPlane plane;
  std::string target = internal::asked_control_target();
  if (target.empty()) {
    target = concat(kScheme, tasks.front().address);
    client.hosted_by = tasks.front().to_string();
    if (self == 0) {
      plane.server = internal::host_control_server(tasks, tasks.front().address, options, client);
      target = plane.server->target();
    }
  }
  plane.secret = client.secret;
  plane.job_id = client.job_id;
  plane.client = connect_control(target, tasks[self], client);
  return plane;
}

}  // namespace tutti
