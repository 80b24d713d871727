// Joins a job whose server's address is in the environment or is broadcast by task 0.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/join_job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "core/hash.h"
#include "core/process_probe.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/communicator.h"

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

/// Labels this process in the trace with the name of its task.
void enter_as(const std::vector<MemberTask>& tasks, std::size_t self) {
  if (self < tasks.size()) {
    const MemberTask& task = tasks[self];
    return internal::set_trace_task(concat(task.job, "-", task.index), static_cast<int>(self));
  }
  fail(ErrorCode::kInvalidArgument, "join_job: expected a task number below ", tasks.size(),
       ", got ", self);
}

ControlOptions control_options(const JoinOptions& options) {
  ControlOptions client = options.client;
  if (client.job_id.empty()) client.job_id = variable("TUTTI_JOB_ID");
  if (!client.secret.is_set()) client.secret = JobSecret::from_environment();
  if (client.incarnation == 0) client.incarnation = restarts();
  return client;
}

std::unique_ptr<ControlServer> host_control_server(const std::vector<MemberTask>& tasks,
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

/// Message that task 0 broadcasts to the other tasks as raw bytes.
struct Invitation {
  enum class Kind : std::uint8_t { kNoHost, kAt, kFailed } kind = Kind::kNoHost;
  std::uint16_t secret_size = 0;
  std::array<char, 500> text{};  // target, or the reason why there is none; null-terminated
  std::array<std::byte, 4096> secret{};

  void set_text(Kind what, const std::string& whole) {
    kind = what;
    std::copy_n(whole.begin(), std::min(whole.size(), text.size() - 1), text.begin());
  }
  void set_secret(const JobSecret& job) {
    secret_size = static_cast<std::uint16_t>(job.bytes().size());
    std::ranges::copy(job.bytes(), secret.begin());
  }
};
static_assert(std::is_trivially_copyable_v<Invitation>);

std::size_t num_machines(Communicator& communicator, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(ConstElements(std::span(&own, 1)), Elements(std::span(all)), {},
                          {.name = "machines of the workers"});
  return std::set<std::int64_t>(all.begin(), all.end()).size();
}

/// Starts the server in task 0, and returns the message for the other tasks. Sets `server` if the
/// message's kind is kAt.
Invitation host(const std::vector<MemberTask>& tasks, const JoinOptions& options,
                ControlOptions client, std::size_t machines,
                std::unique_ptr<ControlServer>& server) {
  Invitation invitation;
  const std::string asked = variable("TUTTI_CONTROL");
  if (asked.empty() && !control_has_grpc()) {
    log_warning(
        "workers: this build has no gRPC, so a stopped or stuck worker is detected only "
        "at the deadline of a call");
    return invitation;
  }
  if (asked.empty() && machines > 1) {
    log_warning(
        concat("workers: the job spans ", machines,
               " machines, but has no control server, so a stopped or stuck worker is "
               "detected only at the deadline of a call; set TUTTI_CONTROL=grpc://host:port with a "
               "free port on the machine of ",
               tasks.front().to_string()));
    return invitation;
  }
  try {
    if (!client.secret.is_set()) client.secret = JobSecret::generate();
    const std::string address =
        asked.empty() ? "127.0.0.1:0" : internal::parse_grpc_target("control", asked).to_string();
    server = host_control_server(tasks, address, options, client);
    invitation.set_text(Invitation::Kind::kAt, server->target());
    invitation.set_secret(client.secret);
  } catch (const Error& error) {
    invitation.set_text(Invitation::Kind::kFailed, error.message());
  }
  return invitation;
}

}  // namespace

internal::Endpoint internal::parse_grpc_target(std::string_view who, const std::string& text) {
  if (text.starts_with(kScheme)) {
    if (const auto endpoint = parse_endpoint(text.substr(kScheme.size()))) return *endpoint;
  }
  fail(ErrorCode::kInvalidArgument, who, ": expected a target grpc://host:port, got '", text,
       "'; for example, use grpc://127.0.0.1:4711");
}

ControlPlane join_job(const std::vector<MemberTask>& tasks, std::size_t self,
                      const JoinOptions& options) {
  enter_as(tasks, self);
  ControlOptions client = control_options(options);
  ControlPlane plane;
  std::string target = variable("TUTTI_CONTROL");
  if (target.empty()) {
    target = concat(kScheme, tasks.front().address);
    client.hosted_by = tasks.front().to_string();
    if (self == 0) {
      plane.server = host_control_server(tasks, tasks.front().address, options, client);
      target = plane.server->target();
    }
  }
  plane.secret = client.secret;
  plane.job_id = client.job_id;
  plane.client = connect_control(target, tasks[self], client);
  return plane;
}

std::int64_t internal::number_of_this_machine() {
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  const ProcessIdentity& process = this_process();
  Hasher hasher;
  hasher.update(concat(process.machine, " ", process.host, " ", network.string()));
  return std::stoll(hasher.hex_digest().substr(0, 15), nullptr, 16);
}

ControlPlane internal::connect_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                                   const JoinOptions& options, std::int64_t machine) {
  const auto self = static_cast<std::size_t>(communicator.rank());
  enter_as(tasks, self);
  ControlOptions client = control_options(options);
  client.hosted_by = tasks.front().to_string();
  const TimePoint deadline = deadline_after(Clock::system().now(), client.timeout);
  const std::size_t machines = num_machines(communicator, machine);
  ControlPlane plane;
  Invitation invitation;
  if (self == 0) invitation = host(tasks, options, client, machines, plane.server);
  communicator.broadcast(
      Elements(reinterpret_cast<std::byte*>(&invitation), sizeof(invitation), DType::kUInt8), 0,
      {.name = "control server"});
  const std::string text = invitation.text.data();
  switch (invitation.kind) {
    case Invitation::Kind::kNoHost:
      return plane;
    case Invitation::Kind::kFailed:
      fail(ErrorCode::kUnavailable, tasks[self].to_string(), ": ", client.hosted_by,
           " cannot host the job's control server: ", text);
    case Invitation::Kind::kAt:
      break;
  }
  client.secret = JobSecret(std::span(invitation.secret).first(invitation.secret_size));
  std::ranges::fill(invitation.secret, std::byte{0});
  plane.secret = client.secret;
  plane.job_id = client.job_id;
  plane.client = connect_control(text, tasks[self], client);
  plane.client->wait_for_members(deadline);
  return plane;
}

ControlPlane connect_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                         const JoinOptions& options) {
  return internal::connect_job(tasks, communicator, options, internal::number_of_this_machine());
}

}  // namespace tutti
